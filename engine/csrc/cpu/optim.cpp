// AdamW and LAMB on flat shards, on the CPU.
#include "ms/optim.h"

#include "common.hpp"

namespace ms {

template <class T> struct Moments {
    T beta1, beta2, eps, c1, root_c2, grad_scale;

    Moments(double b1, double b2, double e, double first, double second, double scale)
        : beta1(T(b1)), beta2(T(b2)), eps(T(e)), c1(T(1 / first)), root_c2(T(1 / std::sqrt(second))),
          grad_scale(T(scale)) {}

    // Moves both moments and returns (m / c1) / (sqrt(v / c2) + eps).
    T move(T grad, T& m, T& v) const {
        T g = grad * grad_scale;
        m = beta1 * m + (T(1) - beta1) * g;
        v = beta2 * v + (T(1) - beta2) * g * g;
        return m * c1 / (std::sqrt(v) * root_c2 + eps);
    }
};

template <class F> int by_master(int dtype, const F& f) {
    switch (dtype) {
        case MS_F32: return f(float());
        case MS_F64: return f(double());
        default: return MS_BAD_DTYPE;
    }
}

}  // namespace ms

using namespace ms;

int ms_cpu_adamw(void* param, const void* grad, void* exp_avg, void* exp_avg_sq, int64_t n, double lr,
                 double beta1, double beta2, double eps, double decay, double c1, double c2,
                 double grad_scale, int dtype, void* stream) {
    if (n < 0) return MS_BAD_SIZE;
    if (n == 0) return MS_OK;
    if (!param || !grad || !exp_avg || !exp_avg_sq) return MS_BAD_POINTER;
    return by_master(dtype, [&](auto zero) {
        using T = decltype(zero);
        Moments<T> op(beta1, beta2, eps, c1, c2, grad_scale);
        T keep = T(1 - lr * decay), rate = T(lr);
        spread(stream, n, 32768, [&](int64_t begin, int64_t end) {
            T *p = (T*)param, *m = (T*)exp_avg, *v = (T*)exp_avg_sq;
            const T* g = (const T*)grad;
#pragma omp simd
            for (int64_t i = begin; i < end; i++) p[i] = p[i] * keep - rate * op.move(g[i], m[i], v[i]);
        });
        return int(MS_OK);
    });
}

int ms_cpu_lamb_moments(const void* param, void* grad, void* exp_avg, void* exp_avg_sq,
                        const int64_t* pieces, int64_t n_pieces, const int64_t* first_piece,
                        const double* decay, double* partial, double* norms, int64_t tensors,
                        double beta1, double beta2, double eps, double c1, double c2,
                        double grad_scale, int dtype, void* stream) {
    if (n_pieces < 0 || tensors < 0) return MS_BAD_SIZE;
    if (tensors == 0) return MS_OK;
    if (!param || !grad || !exp_avg || !exp_avg_sq || !pieces || !first_piece || !decay || !partial ||
        !norms)
        return MS_BAD_POINTER;
    return by_master(dtype, [&](auto zero) {
        using T = decltype(zero);
        Moments<T> op(beta1, beta2, eps, c1, c2, grad_scale);
        spread(stream, n_pieces, 1, [&](int64_t from, int64_t to) {
            const Moments<T> own = op;  // in registers: gcc gathers what it must load in a reduction
            const T* p = (const T*)param;
            T *g = (T*)grad, *m = (T*)exp_avg, *v = (T*)exp_avg_sq;
            for (int64_t k = from; k < to; k++) {
                const T weight = T(decay[pieces[3 * k]]);
                const int64_t begin = pieces[3 * k + 1], end = pieces[3 * k + 2];
                double of_param = 0, of_update = 0;
#pragma omp simd reduction(+ : of_param, of_update)
                for (int64_t i = begin; i < end; i++) {
                    T x = p[i], u = own.move(g[i], m[i], v[i]) + weight * x;
                    g[i] = u;
                    of_param += double(x) * double(x);
                    of_update += double(u) * double(u);
                }
                partial[2 * k] = of_param;
                partial[2 * k + 1] = of_update;
            }
        });
        for (int64_t t = 0; t < tensors; t++) {
            norms[2 * t] = norms[2 * t + 1] = 0;
            add_groups(partial + 2 * first_piece[t], norms + 2 * t, first_piece[t + 1] - first_piece[t],
                       2, 2);
        }
        return int(MS_OK);
    });
}

int ms_cpu_lamb_apply(void* param, const void* update, const int64_t* pieces, int64_t n_pieces,
                      const double* ratio, double lr, int dtype, void* stream) {
    if (n_pieces < 0) return MS_BAD_SIZE;
    if (n_pieces == 0) return MS_OK;
    if (!param || !update || !pieces || !ratio) return MS_BAD_POINTER;
    return by_master(dtype, [&](auto zero) {
        using T = decltype(zero);
        spread(stream, n_pieces, 1, [&](int64_t from, int64_t to) {
            T* p = (T*)param;
            const T* u = (const T*)update;
            for (int64_t k = from; k < to; k++) {
                const T rate = T(lr * ratio[pieces[3 * k]]);
                const int64_t begin = pieces[3 * k + 1], end = pieces[3 * k + 2];
#pragma omp simd
                for (int64_t i = begin; i < end; i++) p[i] -= rate * u[i];
            }
        });
        return int(MS_OK);
    });
}
