//go:build !unix

package reduce

func cpuSeconds() float64 { return 0 }
