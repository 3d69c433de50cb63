//go:build cgo

package main

// #include <stddef.h>
// void gopccl_set_error(const char *text, size_t n);
import "C"

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"github.com/gopccl/gopccl/core/errs"
)

// call says how the errors of one function become results (control spec, section 13.5).
type call struct {
	name string
	keep []errs.Code // results that pass as they are, beside those of common
	rest errs.Code   // any other failure
}

// common are results that every function may have.
var common = []errs.Code{errs.NotInitialized, errs.Internal, errs.InvalidUsage}

var (
	callInit            = call{"init", nil, errs.Internal}
	callInfo            = call{"get build info", []errs.Code{errs.InvalidArgument}, errs.Internal}
	callCreate          = call{"create communicator", []errs.Code{errs.InvalidArgument}, errs.Internal}
	callDestroy         = call{"destroy communicator", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callClose           = call{"close communicator", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callFindDevice      = call{"find device", []errs.Code{errs.InvalidArgument}, errs.Internal}
	callAttribute       = call{"get attribute", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callSetCredential   = call{"set credential", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callSetMasters      = call{"set masters", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callSetHeartbeat    = call{"set default heartbeat", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callSetReattach     = call{"set reattach timeout", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callConnect         = call{"connect", []errs.Code{errs.InvalidArgument}, errs.MasterConnectionFailed}
	callUpdate          = call{"update topology", []errs.Code{errs.InvalidArgument, errs.PendingAsyncOps}, errs.UpdateTopologyFailed}
	callPending         = call{"are peers pending", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callWaitForPeers    = call{"wait for peers", []errs.Code{errs.InvalidArgument, errs.PendingAsyncOps}, errs.UpdateTopologyFailed}
	callLeave           = call{"leave", []errs.Code{errs.InvalidArgument, errs.PendingAsyncOps, errs.NoSharedStateAvailable}, errs.InvalidUsage}
	callOptimize        = call{"optimize topology", []errs.Code{errs.InvalidArgument}, errs.TopologyOptimizationFailed}
	callReduce          = call{"all reduce", []errs.Code{errs.InvalidArgument, errs.TooFewPeers}, errs.RankConnectionLost}
	callCollect         = call{"collective", []errs.Code{errs.InvalidArgument, errs.TooFewPeers}, errs.RankConnectionLost}
	callSend            = call{"send", []errs.Code{errs.InvalidArgument, errs.TooFewPeers}, errs.RankConnectionLost}
	callReceive         = call{"receive", []errs.Code{errs.InvalidArgument, errs.TooFewPeers}, errs.RankConnectionLost}
	callGroup           = call{"get group", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callAwait           = call{"await async reduce", []errs.Code{errs.InvalidArgument}, errs.RankConnectionLost}
	callList            = call{"list async reduces", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callSync            = call{"synchronize shared state", []errs.Code{errs.InvalidArgument, errs.PendingAsyncOps}, errs.InvalidUsage}
	callTorn            = call{"torn tensors", []errs.Code{errs.InvalidArgument}, errs.Internal}
	callSaveCheckpoint  = call{"save checkpoint", []errs.Code{errs.InvalidArgument}, errs.Internal}
	callLoadCheckpoint  = call{"load checkpoint", []errs.Code{errs.InvalidArgument}, errs.Internal}
	callFindCheckpoint  = call{"find checkpoint", []errs.Code{errs.InvalidArgument, errs.NoSharedStateAvailable}, errs.Internal}
	callCreateMaster    = call{"create master", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callRunMaster       = call{"run master", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callMasterPort      = call{"get master port", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callInterruptMaster = call{"interrupt master", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callAwaitMaster     = call{"await master", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
	callDestroyMaster   = call{"destroy master", []errs.Code{errs.InvalidArgument}, errs.InvalidUsage}
)

// result returns the number that C gets for err.
func (c call) result(err error) errs.Code {
	code := errs.CodeOf(err)
	switch code {
	case errs.Success:
		return code
	case errs.Busy, errs.Closed, errs.Unsupported:
		return errs.InvalidUsage
	case errs.DeviceFailed: // not lost: retrying does not help
		return errs.Internal
	case errs.Mismatch, errs.InvalidConfig:
		code = errs.InvalidArgument
	}
	for _, list := range [][]errs.Code{common, c.keep} {
		for _, k := range list {
			if k == code {
				return code
			}
		}
	}
	return c.rest
}

// initialized is set by pcclInit.
var initialized atomic.Bool

// guard runs one function on communicators.
func (c call) guard(f func() error) C.int {
	if !initialized.Load() {
		return c.report(errs.New(errs.NotInitialized, c.name, nil).WithHint("call pcclInit first"))
	}
	return c.run(f)
}

// run turns f's error or panic into a result, tells the thread's last error
// and the log.
func (c call) run(f func() error) (code C.int) {
	defer func() {
		if p := recover(); p != nil {
			code = c.report(errs.New(errs.Internal, c.name, fmt.Errorf("panic: %v\n%s", p, debug.Stack())))
		}
	}()
	return c.report(f())
}

func (c call) report(err error) C.int {
	if err == nil {
		C.gopccl_set_error(nil, 0)
		return 0
	}
	code, text := c.result(err), err.Error()
	C.gopccl_set_error((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
	level := slog.LevelError
	switch code {
	case errs.TooFewPeers:
		level = slog.LevelInfo
	case errs.RankConnectionLost:
		level = slog.LevelWarn
	}
	logger().Log(context.Background(), level, c.name+" failed", "result", int(code), "error", text)
	flushLog()
	return C.int(code)
}

// bad returns an error for an argument.
func (c call) bad(format string, args ...any) error {
	return errs.New(errs.InvalidArgument, c.name, fmt.Errorf(format, args...))
}

// usage returns an error for a call at the wrong time.
func (c call) usage(text, hint string) error {
	return errs.New(errs.InvalidUsage, c.name, errors.New(text)).WithHint(hint)
}
