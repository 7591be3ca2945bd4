// Where a session's keys and values lie: float16, per layer and KV head, keys in blocks of 16 positions side by side
// ([block][head_dim][16]: a score needs no horizontal sum), values position by position ([position][head_dim]).
// Positions are never moved: forgetting the newest ones means writing over them.
#ifndef POCKET_MODEL_KV_CACHE_HPP
#define POCKET_MODEL_KV_CACHE_HPP

#include <cstddef>

#include "../../kernels/kernels.hpp"
#include "../config.hpp"
#include "../core/types.hpp"
#include "../core/view.hpp"
#include "spec.hpp"

POCKET_NAMESPACE_BEGIN

// The places of keys and values in memory that somebody else owns; `values` float16 long.
struct KvCache {
  f16* data = nullptr;
  std::size_t layers = 0, kv_heads = 0, head_dim = 0;
  std::size_t positions = 0;  // a multiple of 16

  // Number of float16 values for a context of that many positions; 64-bit throughout.
  static constexpr std::size_t values(const ModelSpec auto& s, std::size_t context) noexcept {
    return 2 * s.layers * s.kv_heads * round_up(context, key_block) * s.head_dim;
  }

  // First key block of one layer's KV head; the others follow from there.
  f16* keys(std::size_t layer, std::size_t head) const noexcept {
    return data + (2 * layer * kv_heads + head) * positions * head_dim;
  }
  // First value of one layer's KV head.
  f16* values(std::size_t layer, std::size_t head) const noexcept {
    return data + ((2 * layer + 1) * kv_heads + head) * positions * head_dim;
  }
  // Stores one position's key and value, rounded to float16.
  void append(std::size_t layer, std::size_t head, std::size_t position, const float* key,
              const float* value) const noexcept {
    f16* k = keys(layer, head) + position / key_block * key_block * head_dim + position % key_block;
    f16* v = values(layer, head) + position * head_dim;
    for (std::size_t d = 0; d < head_dim; ++d) {
      k[d * key_block] = to_f16(key[d]);
      v[d] = to_f16(value[d]);
    }
  }
};

POCKET_NAMESPACE_END

#endif
