// What quantising lost, matrix by matrix: a model's tiles against the weights that they were made from. Says as well
// whether each code is the one that lies nearest to its weight, as a quantiser that rounds leaves it: a nibble or a
// scale that went wrong on the way shows here, however small it is among a million others. (Quantisers that trade one
// weight's error for another's, such as GPTQ, leave many such codes on purpose.)
#ifndef POCKET_VALIDATE_WEIGHT_LOSS_HPP
#define POCKET_VALIDATE_WEIGHT_LOSS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "../quant/format.hpp"
#include "reference_weights.hpp"

POCKET_NAMESPACE_BEGIN

// Of one matrix.
struct WeightLoss {
  double relative = 0;  // ||model - reference|| / ||reference||; 0 where both are 0
  std::size_t weights = 0;
  std::size_t not_nearest = 0;      // codes that another code would beat, by more than a thousandth of a step
  std::size_t row = 0, column = 0;  // of the weight that is furthest off, in steps
  double steps = 0;                 // how far: |model - reference| / scale
};

// Row r of a projection is row `packed_row` of the matrix that holds it.
inline std::size_t packed_row(const RuntimeSpec& s, Projection p, std::size_t r) noexcept {
  switch (p) {
    case Projection::k: return q_width(s) + r;
    case Projection::v: return q_width(s) + kv_width(s) + r;
    case Projection::gate: return r / 16 * 32 + r % 16;
    case Projection::up: return r / 16 * 32 + 16 + r % 16;
    case Projection::q:
    case Projection::output:
    case Projection::down: break;
  }
  return r;
}
// The matrix that holds it.
inline const PackedMatrix& packed_matrix(const LayerWeights<PackedMatrix, const float*>& l, Projection p) noexcept {
  switch (p) {
    case Projection::output: return l.output;
    case Projection::gate:
    case Projection::up: return l.gate_up;
    case Projection::down: return l.down;
    case Projection::q:
    case Projection::k:
    case Projection::v: break;
  }
  return l.qkv;
}

// reference [n, k] against rows of w, of which to_packed(r) is row r.
template <class ToPacked>
WeightLoss weight_loss(const ReferenceMatrix& reference, const PackedMatrix& w, ToPacked&& to_packed,
                       Executor& executor) {
  struct Part {
    WeightLoss loss;
    double error = 0, norm = 0;
  };
  constexpr std::size_t step = 64;  // rows a task: the sums do not depend on the threads
  std::vector<Part> parts(div_up(reference.n, step));
  executor.parallel_for(parts.size(), [&](std::size_t task, unsigned) {
    Part& part = parts[task];
    std::vector<double> row(reference.k);
    for (std::size_t r = task * step; r < (std::min)(reference.n, (task + 1) * step); ++r) {
      reference.read(r, row.data());
      for_each_group(w, to_packed(r), [&](const ReferenceGroup& g) {
        for (std::size_t i = 0; i < g.size; ++i) {
          const double want = row[g.first + i];
          const int code = g.codes[i];
          const double off = std::fabs(g.value(code) - want), steps = off / std::fabs(g.scale);
          part.error += off * off;
          part.norm += want * want;
          ++part.loss.weights;
          if (steps > part.loss.steps) {
            part.loss.steps = steps;
            part.loss.row = r;
            part.loss.column = g.first + i;
          }
          double best = off;
          if (code > g.low) best = (std::min)(best, std::fabs(g.value(code - 1) - want));
          if (code < g.high) best = (std::min)(best, std::fabs(g.value(code + 1) - want));
          part.loss.not_nearest += best < off - 1e-3 * std::fabs(g.scale);
        }
      });
    }
  });
  WeightLoss all;
  double error = 0, norm = 0;
  for (const Part& part : parts) {
    error += part.error;
    norm += part.norm;
    all.weights += part.loss.weights;
    all.not_nearest += part.loss.not_nearest;
    if (part.loss.steps > all.steps) {
      all.steps = part.loss.steps;
      all.row = part.loss.row;
      all.column = part.loss.column;
    }
  }
  all.relative = error == 0 ? 0 : std::sqrt(error / norm);
  return all;
}

POCKET_NAMESPACE_END

#endif
