// AdamW and LAMB on flat shards; formulas and contract in ms/optim.h.
//
// Traffic  AdamW 7 elements a parameter; LAMB 7 in its first phase and 3 in its second.
// Launch   AdamW: a thread a pack of 16 bytes. LAMB: a block a piece (at most 16384 elements of one tensor);
//          squares are summed in double by piece, then by tensor in the order of the pieces.
// Tested against engine/ops/adamw.py and engine/ops/lamb.py.
#include "ms/optim.h"

#include "common.cuh"

namespace ms {

constexpr int kThreads = 256;

template <class T> struct Moments {
    T beta1, beta2, eps, c1, root_c2, grad_scale;

    // Moves both moments and returns (m / c1) / (sqrt(v / c2) + eps).
    __device__ T move(T grad, T& m, T& v) const {
        T g = grad * grad_scale;
        m = beta1 * m + (T(1) - beta1) * g;
        v = beta2 * v + (T(1) - beta2) * g * g;
        return m * c1 / (sqrt(v) * root_c2 + eps);
    }
};

template <class T>
Moments<T> moments_of(double beta1, double beta2, double eps, double c1, double c2, double scale) {
    return {T(beta1), T(beta2), T(eps), T(1 / c1), T(1 / sqrt(c2)), T(scale)};
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(T* param, const T* grad, T* exp_avg, T* exp_avg_sq, int64_t n, Moments<T> op, T keep,
                 T rate) {
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V;
    if (i >= n) return;
    Pack<T, V> p = load<T, V>(param + i), g = load<T, V>(grad + i);
    Pack<T, V> m = load<T, V>(exp_avg + i), v = load<T, V>(exp_avg_sq + i);
#pragma unroll
    for (int k = 0; k < V; k++) p.v[k] = p.v[k] * keep - rate * op.move(g.v[k], m.v[k], v.v[k]);
    store<T, V>(param + i, p);
    store<T, V>(exp_avg + i, m);
    store<T, V>(exp_avg_sq + i, v);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    lamb_moments_kernel(const T* param, T* grad, T* exp_avg, T* exp_avg_sq, const int64_t* pieces,
                        const double* decay, double* partial, Moments<T> op) {
    const int64_t *piece = pieces + 3 * int64_t(blockIdx.x), begin = piece[1], end = piece[2];
    const T weight = T(decay[piece[0]]);
    double of_param = 0, of_update = 0;
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        T p = param[i], m = exp_avg[i], v = exp_avg_sq[i];
        T u = op.move(grad[i], m, v) + weight * p;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        grad[i] = u;
        of_param += double(p) * double(p);
        of_update += double(u) * double(u);
    }
    block_sum(of_param, of_update);
    if (threadIdx.x != 0) return;
    partial[2 * int64_t(blockIdx.x)] = of_param;
    partial[2 * int64_t(blockIdx.x) + 1] = of_update;
}

// Sums of a tensor's pieces; a block a tensor, none if it has no piece here.
__global__ void __launch_bounds__(kThreads)
    lamb_norms_kernel(const int64_t* first_piece, const double* partial, double* norms) {
    const int64_t tensor = blockIdx.x, end = first_piece[tensor + 1];
    double of_param = 0, of_update = 0;
    for (int64_t k = first_piece[tensor] + threadIdx.x; k < end; k += blockDim.x) {
        of_param += partial[2 * k];
        of_update += partial[2 * k + 1];
    }
    block_sum(of_param, of_update);
    if (threadIdx.x != 0) return;
    norms[2 * tensor] = of_param;
    norms[2 * tensor + 1] = of_update;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    lamb_apply_kernel(T* param, const T* update, const int64_t* pieces, const double* ratio, double lr) {
    const int64_t *piece = pieces + 3 * int64_t(blockIdx.x), begin = piece[1], end = piece[2];
    const T rate = T(lr * ratio[piece[0]]);
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) param[i] -= rate * update[i];
}

template <class F> int by_master(int dtype, const F& f) {
    switch (dtype) {
        case MS_F32: return f(float());
        case MS_F64: return f(double());
        default: return MS_BAD_DTYPE;
    }
}

}  // namespace ms

using namespace ms;

int ms_cuda_adamw(void* param, const void* grad, void* exp_avg, void* exp_avg_sq, int64_t n, double lr,
                  double beta1, double beta2, double eps, double decay, double c1, double c2,
                  double grad_scale, int dtype, void* stream) {
    if (n < 0) return MS_BAD_SIZE;
    if (n == 0) return MS_OK;
    if (!param || !grad || !exp_avg || !exp_avg_sq) return MS_BAD_POINTER;
    return by_master(dtype, [&](auto zero) {
        using T = decltype(zero);
        auto op = moments_of<T>(beta1, beta2, eps, c1, c2, grad_scale);
        T keep = T(1 - lr * decay), rate = T(lr);
        int64_t whole = packs_fit<T>(0, 0, param, grad, exp_avg, exp_avg_sq) ? n / kPack<T> * kPack<T> : 0;
        auto run = [&](auto kernel, int64_t from, int64_t count, int v) {
            int64_t blocks = (count / v + kThreads - 1) / kThreads;
            if (blocks == 0) return;
            MS_RUN(kernel, unsigned(blocks), kThreads, stream, (T*)param + from, (const T*)grad + from,
                      (T*)exp_avg + from, (T*)exp_avg_sq + from, count, op, keep, rate);
        };
        run(adamw_kernel<T, kPack<T>>, 0, whole, kPack<T>);
        run(adamw_kernel<T, 1>, whole, n - whole, 1);  // what is left of a pack, or all if not aligned
        return launched();
    });
}

int ms_cuda_lamb_moments(const void* param, void* grad, void* exp_avg, void* exp_avg_sq,
                         const int64_t* pieces, int64_t n_pieces, const int64_t* first_piece,
                         const double* decay, double* partial, double* norms, int64_t tensors,
                         double beta1, double beta2, double eps, double c1, double c2,
                         double grad_scale, int dtype, void* stream) {
    if (n_pieces < 0 || tensors < 0 || n_pieces > INT32_MAX || tensors > INT32_MAX) return MS_BAD_SIZE;
    if (tensors == 0) return MS_OK;
    if (!param || !grad || !exp_avg || !exp_avg_sq || !pieces || !first_piece || !decay || !partial ||
        !norms)
        return MS_BAD_POINTER;
    return by_master(dtype, [&](auto zero) {
        using T = decltype(zero);
        auto op = moments_of<T>(beta1, beta2, eps, c1, c2, grad_scale);
        if (n_pieces > 0) {
            auto kernel = lamb_moments_kernel<T>;
            MS_RUN(kernel, unsigned(n_pieces), kThreads, stream, (const T*)param, (T*)grad, (T*)exp_avg,
                      (T*)exp_avg_sq, pieces, decay, partial, op);
        }
        MS_RUN(lamb_norms_kernel, unsigned(tensors), kThreads, stream, first_piece, partial, norms);
        return launched();
    });
}

int ms_cuda_lamb_apply(void* param, const void* update, const int64_t* pieces, int64_t n_pieces,
                       const double* ratio, double lr, int dtype, void* stream) {
    if (n_pieces < 0 || n_pieces > INT32_MAX) return MS_BAD_SIZE;
    if (n_pieces == 0) return MS_OK;
    if (!param || !update || !pieces || !ratio) return MS_BAD_POINTER;
    return by_master(dtype, [&](auto zero) {
        using T = decltype(zero);
        auto kernel = lamb_apply_kernel<T>;
        MS_RUN(kernel, unsigned(n_pieces), kThreads, stream, (T*)param, (const T*)update, pieces, ratio,
                  lr);
        return launched();
    });
}
