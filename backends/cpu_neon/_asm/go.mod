module github.com/gopccl/gopccl/backends/cpu_neon/_asm

go 1.26.0

require golang.org/x/arch v0.32.0
