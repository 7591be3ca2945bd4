// A model taken from a file: its shape, its weights, and the memory in which they lie.
#ifndef POCKET_FILES_LOADED_MODEL_HPP
#define POCKET_FILES_LOADED_MODEL_HPP

#include <cstddef>
#include <string>
#include <utility>

#include "../config.hpp"
#include "../core/workspace.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "safetensors.hpp"

POCKET_NAMESPACE_BEGIN

// Movable; the pointers in `weights` stay valid. Const, it may serve any number of sessions at once.
struct LoadedModel {
  std::string name;          // the file or directory
  std::string architecture;  // "qwen3" or "llama"
  RuntimeSpec spec;
  HostWeights weights;
  bool tied = true;              // the head is the embedding
  bool quantized_here = false;   // the file held floats, which were quantised to 4 bits while loading (min/max)
  std::size_t weight_bytes = 0;  // of tiles and norms
  std::size_t mapped_bytes = 0;  // of them, used from the mapped file as they lie; the rest is in private memory
  // whichever holds the weights
  SafetensorsFile file;
  Workspace memory;
};

POCKET_NAMESPACE_END

#endif
