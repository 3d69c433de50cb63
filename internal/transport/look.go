package transport

import (
	"context"
	"errors"
	"net"
	"time"
)

// Look says what the socket under c has for its reader, which may be another layer than c, and
// takes nothing: n is 1 if there is a byte, and the error io.EOF if the other end has said that
// nothing follows what was read. 0 and nil: neither yet. Any other error is the socket's, or
// errors.ErrUnsupported where c is not over TCP, or the system cannot say.
func Look(c net.Conn) (n int, err error) {
	if t := tcpOf(c); t != nil {
		return look(t, false)
	}
	return 0, errors.ErrUnsupported
}

// AwaitLook is Look, and waits until there is something, or ctx ends, whose error it returns then.
// Until it returns nobody may read from c or set its deadline. Afterwards its socket has none for
// reads.
func AwaitLook(ctx context.Context, c net.Conn) (n int, err error) {
	t := tcpOf(c)
	if t == nil {
		return 0, errors.ErrUnsupported
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		t.SetReadDeadline(time.Unix(1, 0))
	})
	n, err = look(t, true)
	if !stop() {
		<-cut // its deadline must not be set when others read
		if err != nil {
			err = ctx.Err()
		}
	}
	if gone := t.SetReadDeadline(time.Time{}); err == nil {
		err = gone
	}
	return n, err
}
