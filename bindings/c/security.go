//go:build cgo

package main

// #include <stddef.h>
// #include "pccl.h"
import "C"

import "github.com/gopccl/gopccl/core/secure"

//export gopccl_set_credential
func gopccl_set_credential(h C.uintptr_t, path, join *C.char) C.int {
	c := callSetCredential
	return c.run(func() error {
		m, err := lookup[comm](c, uintptr(h))
		if err != nil {
			return err
		}
		if path == nil && join == nil {
			return c.bad("path and join are NULL")
		}
		var token secure.Join
		if join != nil {
			token = secure.Join(C.GoString(join))
			if err := token.Check(); err != nil {
				return c.bad("join: %w", err)
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.session != nil || m.connecting {
			return c.usage("already connected, or connecting", "set it before the connection is made")
		}
		if path != nil {
			m.opt.Security.File, m.opt.Security.Credential = C.GoString(path), nil
		}
		if join != nil {
			m.opt.Security.Join = token
		}
		return nil
	})
}

//export gopccl_set_master_credential
func gopccl_set_master_credential(h C.uintptr_t, path, enroll *C.char) C.int {
	c := callSetCredential
	return c.run(func() error {
		m, err := lookup[master](c, uintptr(h))
		if err != nil {
			return err
		}
		if path == nil && enroll == nil {
			return c.bad("path and enroll are NULL")
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.server != nil {
			return c.usage("it is running, or has run", "set it before the master runs")
		}
		if path != nil {
			m.opt.Security.File, m.opt.Security.Credential = C.GoString(path), nil
		}
		if enroll != nil {
			m.opt.Enroll = C.GoString(enroll)
		}
		return nil
	})
}
