//go:build !linux && !windows

package cuda

// machineMemory returns the memory of the machine in bytes; 0: not known.
func machineMemory() uint64 { return 0 }
