//go:build !linux && !darwin && !windows

package platform

import "errors"

type infoScratch struct{}

func readInfo(uintptr, *infoScratch, *Info) error { return errors.ErrUnsupported }
