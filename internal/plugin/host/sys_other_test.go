//go:build unix && !linux

package host

func actAsMapper() {}
