/* Softmax cross-entropy over a vocabulary that is divided over ranks, in two pieces with the ranks'
 * agreement between them. Reference: engine/ops/cross_entropy.py.
 *   1. each rank: largest, sum of exponentials relative to it, logit of the target if the rank holds it
 *   2. between ranks: L = max(largest); total = sum(total * exp(largest - L)); target = sum(target)
 *      loss of a row = log(total) + L - target
 *   3. each rank: gradient = (exp(logit - L) / total - [column is the target]) * scale
 */
#ifndef MS_CROSS_ENTROPY_H
#define MS_CROSS_ENTROPY_H

#include "ms/base.h"

/* Shapes    logits [rows, cols], rows `stride` apart: columns first .. first + cols of the vocabulary;
 *           targets [rows], numbers in the whole vocabulary; largest, total, target [rows]
 * dtype     of logits; largest, total, target are wide
 * Writes    overwrites largest, total, and target (0 where the target's column is held elsewhere).
 *           cols must be at least 1
 * Traffic   1 element a logit */
MS_ENTRY(cross_entropy_stats,
         (const void* logits, const int64_t* targets, void* largest, void* total, void* target,
          int64_t rows, int64_t cols, int64_t stride, int64_t first, int dtype, void* stream))

/* Shapes    as above; largest, total [rows] as the ranks agreed; scale [1]; grad [rows, cols], rows
 *           `stride` apart
 * dtype     of logits and grad; largest, total, scale are wide. scale is read on the device
 * Writes    overwrites grad; grad may be logits
 * Traffic   2 elements a logit */
MS_ENTRY(cross_entropy_gradient,
         (const void* logits, const int64_t* targets, const void* largest, const void* total,
          const void* scale, void* grad, int64_t rows, int64_t cols, int64_t stride, int64_t first,
          int dtype, void* stream))

#endif
