package main

import (
	"context"
	"io"
	"net"
	"time"
)

// hop is a long way: what enters leaves after the delay, and no more than window
// bytes are under way, as in a TCP connection whose window the round trip is too
// long for. Its rate is window / delay.
type hop struct {
	delay  time.Duration
	window int
}

type parcel struct {
	b   []byte
	due time.Time
}

// carry moves src to dst until src ends, then closes dst.
func (h hop) carry(dst io.WriteCloser, src io.Reader) error {
	const most = 16 << 10
	room := make(chan struct{}, max(h.window/most, 1)) // parcels under way
	way := make(chan parcel, cap(room))
	failed := make(chan error, 1)
	go func() {
		var err error
		for p := range way {
			time.Sleep(time.Until(p.due))
			if err == nil {
				_, err = dst.Write(p.b)
			}
			<-room
		}
		dst.Close()
		failed <- err
	}()
	var err error
	for err == nil {
		room <- struct{}{}
		b := make([]byte, most)
		var n int
		// A parcel is filled if it can be: what is under way counts in parcels.
		if n, err = io.ReadAtLeast(src, b, 1); n > 0 {
			way <- parcel{b[:n], time.Now().Add(h.delay)}
		}
	}
	close(way)
	if werr := <-failed; werr != nil {
		return werr
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// dial connects to addr and returns the near end of a connection that goes
// there over h in both directions.
func (h hop) dial(ctx context.Context, d *net.Dialer, addr string) (net.Conn, error) {
	far, err := d.DialContext(ctx, "tcp", addr)
	if err != nil || h.delay == 0 {
		return far, err
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		far.Close()
		return nil, err
	}
	defer ln.Close()
	near, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		far.Close()
		return nil, err
	}
	inner, err := ln.Accept()
	if err != nil {
		far.Close()
		near.Close()
		return nil, err
	}
	// The way is long, not wide: nothing may pile up in front of it.
	inner.(*net.TCPConn).SetReadBuffer(32 << 10)
	near.(*net.TCPConn).SetWriteBuffer(32 << 10)
	go func() { h.carry(far, inner) }()
	go func() { h.carry(inner, far) }()
	return near, nil
}
