package platform

import (
	"errors"
	"net"
	"time"
)

// Pauses of AcceptLoop behind an error; each is twice as long as the one before.
const (
	acceptPause    = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// AcceptLoop hands every connection of ln to take, one after another, until ln
// is closed. accept(2) also fails for a
// connection that was lost while it waited, for want of descriptors or memory,
// and for whatever the network said meanwhile, and the listener is as good as
// before: failed, if not nil, is called with what is worth a line in the log,
// and the loop goes on after a pause of at most a second. Closing stop, which may be
// nil, ends it in a pause.
func AcceptLoop(ln net.Listener, stop <-chan struct{}, take func(net.Conn), failed func(error)) {
	pause := time.Duration(0)
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			take(conn)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		if failed != nil && Classify(err) != ClassReset {
			failed(err)
		}
		pause = min(max(2*pause, acceptPause), maxAcceptPause)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-stop:
			t.Stop()
			return
		}
	}
}
