// All of the library that a program with its own weights and tokens needs. Files and text are apart, in pocket/files/
// and pocket/text/.
#ifndef POCKET_POCKET_HPP
#define POCKET_POCKET_HPP

#include "../kernels/isa.hpp"
#include "backend/cpu.hpp"
#include "config.hpp"
#include "core/executor.hpp"
#include "core/status.hpp"
#include "core/types.hpp"
#include "core/view.hpp"
#include "core/workspace.hpp"
#include "generate/generate.hpp"
#include "generate/sampler.hpp"
#include "model/memory_plan.hpp"
#include "model/spec.hpp"
#include "model/transformer.hpp"
#include "model/weights.hpp"
#include "quant/activations.hpp"
#include "quant/format.hpp"
#include "quant/pack.hpp"
#include "quant/quantize.hpp"

#endif
