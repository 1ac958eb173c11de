/* Rotary positions: the pair (a, b) = (x[i], x[i + dim/2]) of every head is turned by an angle that the
 * row's position and i give. Reference: engine/ops/rotary.py.
 *   y[i] = a cos - b sin,   y[i + dim/2] = b cos + a sin;   inverse: the angle negated
 */
#ifndef MS_ROTARY_H
#define MS_ROTARY_H

#include "ms/base.h"

/* Shapes    x, y [rows, heads, dim], rows `x_stride` and `y_stride` apart, a row itself dense; cos, sin
 *           [rows / batch, dim / 2], contiguous: row r has position r / batch. dim is even
 * dtype     of all
 * Writes    overwrites y; y may be x if the strides agree. The backward is the inverse of the gradient
 * Traffic   2 elements a value; cos and sin come from the caches */
MS_ENTRY(rotary,
         (const void* x, const void* cos, const void* sin, void* y, int64_t rows, int64_t batch,
          int64_t heads, int64_t dim, int64_t x_stride, int64_t y_stride, int inverse, int dtype,
          void* stream))

#endif
