//go:build !linux

package platform

import "time"

func withoutUserTimeout(uintptr, Options, time.Duration, Info) (bool, error) { return false, nil }
