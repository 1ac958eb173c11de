/* LayerNorm and RMSNorm over rows, with the addition of a residual in front.
 * Reference: engine/ops/norm.py. Formulas, s = x + residual (or x), n = cols:
 *   MS_LAYERNORM  y = (s - mean) * rstd * weight + bias,  rstd = 1 / sqrt(sum((s - mean)^2) / n + eps)
 *   MS_RMSNORM    y = s * rstd * weight,                  rstd = 1 / sqrt(sum(s^2) / n + eps)
 */
#ifndef MS_NORM_H
#define MS_NORM_H

#include "ms/base.h"

enum ms_norm_kind { MS_LAYERNORM = 0, MS_RMSNORM = 1 };

/* Forward.
 * Shapes    x, residual, total, y [rows, cols], contiguous; weight, bias [cols]; mean, rstd [rows]
 * dtype     of x, residual, total, y, weight, bias; mean and rstd are wide
 * Optional  residual (NULL: s = x, and total must be NULL), bias (NULL: none), mean (ignored by RMSNorm)
 * Writes    overwrites y, mean, rstd, and total with s rounded to dtype; total may be x or residual.
 *           Statistics are those of the rounded s.
 * Traffic   2 elements a value (read x, write y); 4 with a residual (read 2, write 2) */
MS_ENTRY(norm_forward,
         (int kind, const void* x, const void* residual, const void* weight, const void* bias, void* y,
          void* total, void* mean, void* rstd, int64_t rows, int64_t cols, double eps, int dtype,
          void* stream))

/* Backward, given what the forward read or wrote.
 * Shapes    dy, dtotal, s, dx [rows, cols], contiguous; dweight, dbias [cols]; scratch: see ms_*_column_scratch
 *           with sums = 2
 * dtype     of dy, dtotal, s, dx, weight; mean, rstd, dweight, dbias, scratch are wide
 * Optional  dtotal (gradient that reaches s from elsewhere, added to dx), dbias (NULL: not wanted), mean
 *           (ignored by RMSNorm)
 * Writes    overwrites dx (may be dy or dtotal); ADDS to dweight and dbias
 * Traffic   3 elements a value (read dy and s, write dx), 4 with dtotal */
MS_ENTRY(norm_backward,
         (int kind, const void* dy, const void* dtotal, const void* s, const void* weight,
          const void* mean, const void* rstd, void* dx, void* dweight, void* dbias, void* scratch,
          int64_t rows, int64_t cols, int dtype, void* stream))

/* Elements (wide) of the scratch that sums `sums` values per column over rows. */
MS_API int64_t ms_cpu_column_scratch(int64_t rows, int64_t cols, int sums);
MS_API int64_t ms_cuda_column_scratch(int64_t rows, int64_t cols, int sums);

#endif
