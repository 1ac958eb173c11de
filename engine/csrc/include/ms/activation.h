/* Non-linearities between the MLP's projections. Reference: engine/ops/activation.py.
 *   gelu    y = z * sigmoid(2u), u = sqrt(2/pi) (z + 0.044715 z^3), z = x + bias   (the tanh form)
 *   swiglu  y = gate * sigmoid(gate) * up
 */
#ifndef MS_ACTIVATION_H
#define MS_ACTIVATION_H

#include "ms/base.h"

/* Bias and GeLU.
 * Shapes    x [rows, cols], rows `x_stride` apart; bias [cols]; y [rows, cols], contiguous
 * dtype     of all
 * Optional  bias (NULL: none)
 * Writes    overwrites y; y may be x if x_stride = cols
 * Traffic   2 elements a value */
MS_ENTRY(gelu_forward,
         (const void* x, const void* bias, void* y, int64_t rows, int64_t cols, int64_t x_stride,
          int dtype, void* stream))

/* Shapes    as above; dy [rows, cols], contiguous; dx [rows, cols], rows `dx_stride` apart; dbias [cols];
 *           scratch: ms_*_column_scratch with sums = 1
 * dtype     of dy, x, bias, dx; dbias and scratch are wide
 * Optional  bias; dbias and scratch (NULL: not wanted)
 * Writes    overwrites dx (may be dy if dx_stride = cols); ADDS to dbias
 * Traffic   3 elements a value */
MS_ENTRY(gelu_backward,
         (const void* dy, const void* x, const void* bias, void* dx, void* dbias, void* scratch,
          int64_t rows, int64_t cols, int64_t x_stride, int64_t dx_stride, int dtype, void* stream))

/* SwiGLU.
 * Shapes    gate, up [rows, cols], rows `stride` apart; y [rows, cols], contiguous
 * dtype     of all
 * Writes    overwrites y
 * Traffic   3 elements a value */
MS_ENTRY(swiglu_forward,
         (const void* gate, const void* up, void* y, int64_t rows, int64_t cols, int64_t stride,
          int dtype, void* stream))

/* Shapes    as above; dy contiguous; dgate, dup [rows, cols], rows `dstride` apart
 * Writes    overwrites dgate and dup (may be gate and up)
 * Traffic   5 elements a value */
MS_ENTRY(swiglu_backward,
         (const void* dy, const void* gate, const void* up, void* dgate, void* dup, int64_t rows,
          int64_t cols, int64_t stride, int64_t dstride, int dtype, void* stream))

#endif
