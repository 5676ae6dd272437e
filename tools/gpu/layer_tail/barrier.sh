#!/bin/bash
# quiet
export PATH=/usr/local/cuda/bin:$PATH
timeout 60 nvcc -arch=sm_90a -O3 -o barrier barrier.cu && timeout 15 ./barrier
