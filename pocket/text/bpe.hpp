// Byte-pair encoding of one piece of text: while any two neighbouring tokens form a known merge, join the pair of the
// lowest rank, the leftmost of equals. The result depends on nothing else.
//
// Short pieces (words) are rescanned after each merge, in registers and one cache line or two; long ones, which are
// hostile or accidental (a megabyte of one letter), go through a heap of candidates and a linked list: O(n log n), and
// no recursion.
#ifndef POCKET_TEXT_BPE_HPP
#define POCKET_TEXT_BPE_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// (left id, right id) -> (rank, merged id): open addressing, at most two thirds full, 16 bytes a slot.
class MergeTable {
 public:
  static constexpr std::uint32_t none = 0xffffffffu;  // the rank of a pair that does not merge
  // left and right join to `merged`; the smallest rank first.
  struct Merge {
    std::int32_t left = -1, right = -1, merged = -1;
    std::uint32_t rank = none;
  };

  MergeTable() : MergeTable(0) {}
  // merges: how many will be inserted, at most 2^30.
  explicit MergeTable(std::size_t merges)
      : slots_(std::bit_ceil(merges + merges / 2 + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

  // Each rank belongs to one pair. Of two merges of one pair, the first inserted stays, or with `replace` the last.
  void insert(const Merge& merge, bool replace = false) noexcept {
    Merge& slot = slots_[slot_of(merge.left, merge.right)];
    if (slot.rank == none || replace) slot = merge;
  }
  // rank == none where the pair does not merge. Negative ids, which mean no token, never do.
  const Merge& find(std::int32_t left, std::int32_t right) const noexcept { return slots_[slot_of(left, right)]; }
  std::size_t bytes() const noexcept { return slots_.size() * sizeof(Merge); }

 private:
  // The pair's slot, or the empty one where it would stand. There always is one: the table is never full.
  std::size_t slot_of(std::int32_t left, std::int32_t right) const noexcept {
    const std::uint64_t key =
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
    // Fibonacci hashing takes the product's high bits; the fold lets `left` reach them from below as well.
    std::size_t i = static_cast<std::size_t>((key ^ key >> 29) * 0x9e3779b97f4a7c15u >> shift_);
    const std::size_t mask = slots_.size() - 1;
    while (slots_[i].rank != none && (slots_[i].left != left || slots_[i].right != right)) i = (i + 1) & mask;
    return i;
  }

  std::vector<Merge> slots_;
  int shift_;
};

// Working memory of one thread's merging; grows with the longest piece seen.
class BpeMerger {
 public:
  // Merges ids[0..n) in place and returns how many are left. n <= 2^31. Ids below 0 (no token) stay as they are and
  // merge with nothing.
  std::size_t merge(std::int32_t* ids, std::size_t n, const MergeTable& table) {
    return n <= short_length ? merge_short(ids, n, table) : merge_long(ids, n, table);
  }

 private:
  // Words are mostly under 16 bytes, where a scan of the ranks is one or two cache lines.
  static constexpr std::size_t short_length = 32;
  struct Node {
    std::int32_t id;
    std::uint32_t previous, next;
  };
  static constexpr std::uint32_t end = 0xffffffffu;

  static std::size_t merge_short(std::int32_t* ids, std::size_t n, const MergeTable& table) noexcept {
    std::uint32_t ranks[short_length];
    std::int32_t merged[short_length];
    const auto look = [&](std::size_t i) {
      const MergeTable::Merge& m = table.find(ids[i], ids[i + 1]);
      ranks[i] = m.rank;
      merged[i] = m.merged;
    };
    for (std::size_t i = 0; i + 1 < n; ++i) look(i);
    while (n > 1) {
      const std::size_t best = static_cast<std::size_t>(std::min_element(ranks, ranks + (n - 1)) - ranks);
      if (ranks[best] == MergeTable::none) break;
      ids[best] = merged[best];
      std::copy(ids + best + 2, ids + n, ids + best + 1);
      if (best + 2 < n) {
        std::copy(ranks + best + 2, ranks + n - 1, ranks + best + 1);
        std::copy(merged + best + 2, merged + n - 1, merged + best + 1);
      }
      --n;
      if (best + 1 < n) look(best);
      if (best > 0) look(best - 1);
    }
    return n;
  }

  std::size_t merge_long(std::int32_t* ids, std::size_t n, const MergeTable& table) {
    nodes_.resize(n);
    heap_.clear();
    for (std::size_t i = 0; i < n; ++i) {
      const auto position = static_cast<std::uint32_t>(i);
      nodes_[i] = {ids[i], i == 0 ? end : position - 1, i + 1 == n ? end : position + 1};
    }
    for (std::uint32_t i = 0; i + 1 < n; ++i) add(i, table);
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const std::uint64_t candidate = heap_.back();
      heap_.pop_back();
      const auto position = static_cast<std::uint32_t>(candidate);
      // Either side may have merged since this was pushed. Ranks belong to one pair each, so that the rank that stands
      // here now says whether it is still the same pair.
      const MergeTable::Merge& m = merge_at(position, table);
      if (m.rank == candidate >> 32) join(position, m.merged, table);
    }
    std::size_t count = 0;
    for (std::uint32_t i = 0; i != end; i = nodes_[i].next) ids[count++] = nodes_[i].id;
    return count;
  }

  // The joined node keeps its left side's place; the right side's is emptied.
  void join(std::uint32_t position, std::int32_t merged, const MergeTable& table) {
    Node& left = nodes_[position];
    Node& right = nodes_[left.next];
    left.id = merged;
    left.next = right.next;
    right = {-1, end, end};
    if (left.next != end) nodes_[left.next].previous = position;
    if (add(position, table)) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    if (left.previous != end && add(left.previous, table)) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  // What the node at `position` and the one after it merge to.
  const MergeTable::Merge& merge_at(std::uint32_t position, const MergeTable& table) const noexcept {
    const Node& left = nodes_[position];
    return table.find(left.id, left.next == end ? -1 : nodes_[left.next].id);
  }

  // Puts the pair that begins at `position` at the heap's end, unordered as yet; false if it does not merge.
  bool add(std::uint32_t position, const MergeTable& table) {
    const std::uint32_t rank = merge_at(position, table).rank;
    if (rank == MergeTable::none) return false;
    heap_.push_back(static_cast<std::uint64_t>(rank) << 32 | position);
    return true;
  }

  std::vector<Node> nodes_;
  std::vector<std::uint64_t> heap_;  // rank << 32 | position: the smallest is the next to merge
};

POCKET_NAMESPACE_END

#endif
