//go:build !linux

package platform

func withoutUserTimeout(uintptr, Options, Info) (bool, error) { return false, nil }
