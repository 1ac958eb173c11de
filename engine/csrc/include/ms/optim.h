/* Optimizer steps on flat shards. References: engine/ops/adamw.py, engine/ops/lamb.py.
 * With g = grad * grad_scale, step t from 1, c1 = 1 - beta1^t, c2 = 1 - beta2^t:
 *   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
 *   AdamW  p = p (1 - lr decay) - lr (m / c1) / (sqrt(v / c2) + eps)
 *   LAMB   u = (m / c1) / (sqrt(v / c2) + eps) + decay p;    p = p - lr ratio u
 */
#ifndef MS_OPTIM_H
#define MS_OPTIM_H

#include "ms/base.h"

/* One run of a shard with one weight decay.
 * Shapes    param, grad, exp_avg, exp_avg_sq [n], contiguous
 * dtype     MS_F32 or MS_F64, of all four
 * Writes    updates param, exp_avg, exp_avg_sq in place; grad is only read
 * Traffic   7 elements a parameter (read 4, write 3) */
MS_ENTRY(adamw,
         (void* param, const void* grad, void* exp_avg, void* exp_avg_sq, int64_t n, double lr,
          double beta1, double beta2, double eps, double decay, double c1, double c2,
          double grad_scale, int dtype, void* stream))

/* LAMB, first phase: moments, update direction, and its square norms by tensor.
 * Shapes    param, grad, exp_avg, exp_avg_sq [flat]; pieces [n_pieces, 3]: tensor, begin, end (begin and
 *           end in the flat shard), sorted, a tensor's pieces side by side; first_piece [tensors + 1];
 *           decay [tensors]; partial [n_pieces, 2]; norms [tensors, 2]
 * dtype     MS_F32 or MS_F64, of the first four; decay, partial, norms are double
 * Writes    updates exp_avg, exp_avg_sq; OVERWRITES grad with u; overwrites norms with sum(p^2), sum(u^2)
 *           and partial with the same by piece. Elements outside all pieces are left alone
 * Traffic   7 elements a parameter (read 4, write 3) */
MS_ENTRY(lamb_moments,
         (const void* param, void* grad, void* exp_avg, void* exp_avg_sq, const int64_t* pieces,
          int64_t n_pieces, const int64_t* first_piece, const double* decay, double* partial,
          double* norms, int64_t tensors, double beta1, double beta2, double eps, double c1, double c2,
          double grad_scale, int dtype, void* stream))

/* LAMB, second phase: p -= lr * ratio[tensor] * u.
 * Shapes    param, update [flat]; pieces as above; ratio [tensors]
 * dtype     of param and update; ratio is double, read on the device
 * Writes    updates param in place
 * Traffic   3 elements a parameter (read 2, write 1) */
MS_ENTRY(lamb_apply,
         (void* param, const void* update, const int64_t* pieces, int64_t n_pieces,
          const double* ratio, double lr, int dtype, void* stream))

#endif
