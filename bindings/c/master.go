//go:build cgo

package main

// #include "pccl.h"
import "C"

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// version is what gopcclVersion returns.
var version = sync.OnceValue(func() *C.char {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return C.CString(v) // for as long as the process lives
})

//export gopccl_version
func gopccl_version() *C.char { return version() }

// master runs at most once.
type master struct {
	opt core.MasterOptions
	// heartbeat says that the configuration or the environment has heartbeats.
	heartbeat bool

	mu      sync.Mutex
	server  *core.Master                // nil until it runs
	running atomic.Pointer[core.Master] // the same, for who must not wait
	ended   chan struct{}
	err     error // of the server; valid once ended is closed
}

//export gopccl_create_master
func gopccl_create_master(listen *C.ccoip_socket_address_t, wanted C.int, out *C.uintptr_t) C.int {
	return callCreateMaster.run(func() error {
		if wanted == 0 {
			return callCreateMaster.bad("p_master_handle_out is NULL")
		}
		c, err := settings()
		if err != nil {
			return err
		}
		m := &master{opt: c.MasterOptions(logger()), ended: make(chan struct{})}
		m.heartbeat = given(c, "master.heartbeat_interval") || given(c, "master.heartbeat_timeout")
		// PCCL tells about a wrong address when the master runs.
		m.opt.Listen = "unknown protocol"
		if at, err := address(callCreateMaster, listen); err == nil {
			m.opt.Listen = at.String()
		}
		*out = C.uintptr_t(objects.add(m))
		return nil
	})
}

// longestHeartbeat bounds gopcclSetDefaultHeartbeat, in milliseconds.
const longestHeartbeat = 24 * 60 * 60 * 1000

//export gopccl_set_default_heartbeat
func gopccl_set_default_heartbeat(h C.uintptr_t, interval, timeout C.uint64_t) C.int {
	c := callSetHeartbeat
	return c.run(func() error {
		m, err := lookup[master](c, uintptr(h))
		if err != nil {
			return err
		}
		if interval < 1 || timeout > longestHeartbeat || timeout/2 < interval {
			return c.bad("heartbeats every %d ms, and %d ms of silence: the first is at least 1, the second at least twice the first, and at most a day", uint64(interval), uint64(timeout))
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.server != nil {
			return c.usage("it is running, or has run", "set it before the master runs")
		}
		if !m.heartbeat {
			m.opt.HeartbeatInterval = time.Duration(interval) * time.Millisecond
			m.opt.HeartbeatTimeout = time.Duration(timeout) * time.Millisecond
		}
		return nil
	})
}

//export gopccl_run_master
func gopccl_run_master(h C.uintptr_t) C.int {
	return callRunMaster.run(func() error {
		m, err := lookup[master](callRunMaster, uintptr(h))
		if err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.server != nil {
			return callRunMaster.usage("it is running, or has run", "create a new one")
		}
		server, err := core.NewMaster(m.opt)
		if err != nil {
			return err
		}
		m.server = server
		m.running.Store(server)
		go func() {
			defer close(m.ended)
			m.err = server.Run(context.Background())
		}()
		return nil
	})
}

// running returns the master behind h, which must have been started.
func running(c call, h C.uintptr_t) (*master, error) {
	m, err := lookup[master](c, uintptr(h))
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.server == nil {
		return nil, c.usage("it is not running", "call pcclRunMaster first")
	}
	return m, nil
}

//export gopccl_master_port
func gopccl_master_port(h C.uintptr_t, out *C.uint16_t) C.int {
	return callMasterPort.run(func() error {
		m, err := running(callMasterPort, h)
		if err != nil {
			return err
		}
		if out == nil {
			return callMasterPort.bad("port_out is NULL")
		}
		*out = C.uint16_t(m.server.Addr().Port())
		return nil
	})
}

//export gopccl_interrupt_master
func gopccl_interrupt_master(h C.uintptr_t) C.int {
	return callInterruptMaster.run(func() error {
		m, err := running(callInterruptMaster, h)
		if err != nil {
			return err
		}
		return m.server.Close()
	})
}

//export gopccl_await_master
func gopccl_await_master(h C.uintptr_t) C.int {
	return callAwaitMaster.run(func() error {
		m, err := running(callAwaitMaster, h)
		if err != nil {
			return err
		}
		return patiently(callAwaitMaster, context.Background(), func(ctx context.Context) error {
			select {
			case <-m.ended:
				return m.err
			case <-ctx.Done():
				return errs.New(errs.Canceled, callAwaitMaster.name, ctx.Err())
			}
		})
	})
}

//export gopccl_destroy_master
func gopccl_destroy_master(h C.uintptr_t) C.int {
	return callDestroyMaster.run(func() error {
		return retire(callDestroyMaster, uintptr(h), func(m *master) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.server == nil {
				return nil
			}
			m.server.Close()
			<-m.ended
			return nil
		})
	})
}
