// LayerNorm and RMSNorm on the CPU. A row is read into the first-level cache once and used from there.
#include "ms/norm.h"

#include "common.hpp"

namespace ms {

template <class T> struct Forward {
    using W = wide_t<T>;
    int kind;
    const T *x, *residual, *weight, *bias;
    T *y, *total;
    W *mean, *rstd;
    int64_t cols;
    W eps;

    void row(int64_t r) const {
        const T* s = x + r * cols;
        if (residual != nullptr) {
            const T* other = residual + r * cols;
            T* sum = total + r * cols;
#pragma omp simd
            for (int64_t c = 0; c < cols; c++) sum[c] = narrow<T>(widen(s[c]) + widen(other[c]));
            s = sum;
        }
        W centre = 0, power = 0;
        if (kind == MS_LAYERNORM) {
            W all = 0;
#pragma omp simd reduction(+ : all)
            for (int64_t c = 0; c < cols; c++) all += widen(s[c]);
            centre = all / W(cols);
            mean[r] = centre;
        }
#pragma omp simd reduction(+ : power)
        for (int64_t c = 0; c < cols; c++) {
            W d = widen(s[c]) - centre;
            power += d * d;
        }
        W scale = W(1) / std::sqrt(power / W(cols) + eps);
        rstd[r] = scale;
        T* out = y + r * cols;
        if (bias != nullptr) {
#pragma omp simd
            for (int64_t c = 0; c < cols; c++)
                out[c] = narrow<T>((widen(s[c]) - centre) * scale * widen(weight[c]) + widen(bias[c]));
        } else {
#pragma omp simd
            for (int64_t c = 0; c < cols; c++)
                out[c] = narrow<T>((widen(s[c]) - centre) * scale * widen(weight[c]));
        }
    }
};

template <class T, int kind> struct Backward {
    using W = wide_t<T>;
    const T *dy, *dtotal, *s, *weight;
    const W *mean, *rstd;
    T* dx;
    W* partial;
    int64_t rows, cols;

    // Row sums first, then all that is written, so that a row is read twice and both times from cache.
    void row(int64_t r, W* dweight, W* dbias) const {
        const T *grad = dy + r * cols, *value = s + r * cols, *w = weight;
        const T* more = dtotal != nullptr ? dtotal + r * cols : nullptr;
        T* out = dx + r * cols;
        W scale = rstd[r], centre = kind == MS_LAYERNORM ? mean[r] : W(0);
        W along = 0, plain = 0;
#pragma omp simd reduction(+ : along, plain)
        for (int64_t c = 0; c < cols; c++) {
            W product = widen(grad[c]) * widen(w[c]);
            along += product * (widen(value[c]) - centre);
            if (kind == MS_LAYERNORM) plain += product;
        }
        along *= scale / W(cols);
        plain /= W(cols);
        if (more != nullptr) {
#pragma omp simd
            for (int64_t c = 0; c < cols; c++) {
                W g = widen(grad[c]), hat = (widen(value[c]) - centre) * scale;
                dweight[c] += g * hat;
                if (kind == MS_LAYERNORM) dbias[c] += g;
                W own = widen(narrow<T>((g * widen(w[c]) - plain - hat * along) * scale));
                out[c] = narrow<T>(own + widen(more[c]));
            }
        } else {
#pragma omp simd
            for (int64_t c = 0; c < cols; c++) {
                W g = widen(grad[c]), hat = (widen(value[c]) - centre) * scale;
                dweight[c] += g * hat;
                if (kind == MS_LAYERNORM) dbias[c] += g;
                out[c] = narrow<T>((g * widen(w[c]) - plain - hat * along) * scale);
            }
        }
    }

    void group(int64_t g) const {
        W *dweight = partial + g * 2 * cols, *dbias = dweight + cols;
        std::memset(dweight, 0, sizeof(W) * 2 * cols);
        int64_t begin = g * group_rows(rows), end = begin + group_rows(rows);
        for (int64_t r = begin; r < (end < rows ? end : rows); r++) row(r, dweight, dbias);
    }
};

}  // namespace ms

using namespace ms;

int64_t ms_cpu_column_scratch(int64_t rows, int64_t cols, int sums) {
    return group_count(rows) * cols * sums;
}

int ms_cpu_norm_forward(int kind, const void* x, const void* residual, const void* weight,
                        const void* bias, void* y, void* total, void* mean, void* rstd, int64_t rows,
                        int64_t cols, double eps, int dtype, void* stream) {
    if (rows < 0 || cols < 1) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!x || !weight || !y || !rstd || !residual != !total) return MS_BAD_POINTER;
    if (kind == MS_LAYERNORM && !mean) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        Forward<T> op{kind, (const T*)x, (const T*)residual, (const T*)weight, (const T*)bias, (T*)y,
                      (T*)total, (W*)mean, (W*)rstd, cols, W(eps)};
        spread(stream, rows, row_grain(cols), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; r++) op.row(r);
        });
        return int(MS_OK);
    });
}

int ms_cpu_norm_backward(int kind, const void* dy, const void* dtotal, const void* s,
                         const void* weight, const void* mean, const void* rstd, void* dx,
                         void* dweight, void* dbias, void* scratch, int64_t rows, int64_t cols,
                         int dtype, void* stream) {
    if (rows < 0 || cols < 1) return MS_BAD_SIZE;
    if (rows == 0) return MS_OK;
    if (!dy || !s || !weight || !rstd || !dx || !dweight || !scratch) return MS_BAD_POINTER;
    if (kind == MS_LAYERNORM && !mean) return MS_BAD_POINTER;
    return by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using W = wide_t<T>;
        int64_t groups = group_count(rows);
        auto run = [&](const auto& op) {
            spread(stream, groups, 1, [&](int64_t begin, int64_t end) {
                for (int64_t g = begin; g < end; g++) op.group(g);
            });
        };
        W* partial = (W*)scratch;
        if (kind == MS_LAYERNORM)
            run(Backward<T, MS_LAYERNORM>{(const T*)dy, (const T*)dtotal, (const T*)s, (const T*)weight,
                                          (const W*)mean, (const W*)rstd, (T*)dx, partial, rows, cols});
        else
            run(Backward<T, MS_RMSNORM>{(const T*)dy, (const T*)dtotal, (const T*)s, (const T*)weight,
                                        nullptr, (const W*)rstd, (T*)dx, partial, rows, cols});
        add_groups(partial, (W*)dweight, groups, cols, 2 * cols);
        if (dbias) add_groups(partial + cols, (W*)dbias, groups, cols, 2 * cols);
        return int(MS_OK);
    });
}
