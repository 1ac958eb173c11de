# The native Redis store: one shared library for one torch and one Python, by the C++ compiler alone.
#
#   make -f store.mk TORCH=... PYTHON_INCLUDE=... OUT=... NAME=msctl_store.so

CXX ?= c++
OUT ?= build
NAME ?= msctl_store.so

FLAGS := -std=c++20 -O2 -g0 -fPIC -fvisibility=hidden -Wall -Wextra

$(OUT)/$(NAME): $(OUT)/resp.o $(OUT)/redis_store.o
	$(CXX) -shared $^ -o $@.part -L$(TORCH)/lib -ltorch_python -ltorch_cpu -lc10
	mv $@.part $@

$(OUT)/resp.o: resp.cpp resp.hpp
	$(CXX) $(FLAGS) -c $< -o $@

$(OUT)/redis_store.o: redis_store.cpp resp.hpp
	$(CXX) $(FLAGS) -isystem $(TORCH)/include -isystem $(TORCH)/include/torch/csrc/api/include \
		-isystem $(PYTHON_INCLUDE) -c $< -o $@
