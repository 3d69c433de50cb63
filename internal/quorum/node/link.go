package node

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/quorum"
	"github.com/gopccl/gopccl/internal/sockets"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
	"github.com/gopccl/gopccl/platform"
)

// Ids of frames.
const (
	idHello   = 1
	idMessage = 2
)

const (
	// helloSize is a digest of the addresses, the sender and the receiver.
	helloSize = sha256.Size + 8 + 8
	// maxQueue is how many messages wait for a connection that does not take them. What
	// comes behind them is lost, as messages may be.
	maxQueue = 64
	// shakeTime bounds dialling, and everything before the hello.
	shakeTime = 3 * time.Second
	// writeTime bounds one message.
	writeTime = 2 * time.Second
	// leastPause and mostPause are between two attempts to reach a master.
	leastPause, mostPause = 20 * time.Millisecond, 500 * time.Millisecond
	// steady is how long a connection has to last for the next one to be tried at once.
	steady = time.Second
	// maxStrangers bounds the connections that have not said a hello.
	maxStrangers = 256
)

// link is the connection to one other master.
type link struct {
	to    quorum.ID
	addr  string
	queue chan []byte
	// serves is where peers find it, as it has said and as this master reaches it; nil: it
	// has not.
	serves atomic.Pointer[netip.AddrPort]
	// When something was said about it, and how often it was not since.
	said map[slog.Level]time.Time
	more map[slog.Level]int
}

// send does not wait.
func (l *link) send(body []byte) {
	select {
	case l.queue <- body:
	default:
	}
}

// drain forgets what has waited for a connection: it is old.
func (l *link) drain() {
	for {
		select {
		case <-l.queue:
		default:
			return
		}
	}
}

// appendFrame appends a frame: its length, an id and a body.
func appendFrame(dst []byte, id uint16, body []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(2+len(body)))
	return append(binary.BigEndian.AppendUint16(dst, id), body...)
}

// readFrame reads a frame of at most limit bytes. Memory grows with what has arrived.
func readFrame(r io.Reader, limit int) (id uint16, body []byte, err error) {
	size, err := wire.ReadLength(r, limit)
	if err != nil {
		return 0, nil, err
	}
	var b bytes.Buffer
	if _, err = io.CopyN(&b, r, int64(size)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return binary.BigEndian.Uint16(b.Bytes()), b.Bytes()[2:], nil
}

// hello is the first frame that a master sends to another one.
func hello(m quorum.Members, to quorum.ID) []byte {
	sum := sha256.Sum256([]byte(m.Names()))
	b := binary.BigEndian.AppendUint64(sum[:], uint64(m.Self()))
	return appendFrame(nil, idHello, binary.BigEndian.AppendUint64(b, uint64(to)))
}

// welcome answers a hello, with the port on which peers find this master, 0: unknown.
func welcome(port uint16) []byte {
	return appendFrame(nil, idHello, binary.BigEndian.AppendUint16(nil, port))
}

func readWelcome(r io.Reader) (port uint16, err error) {
	id, body, err := readFrame(r, 2+2)
	if errors.Is(err, io.EOF) {
		return 0, errors.New("it does not take this one for a master of the same list: its log says why")
	}
	if err == nil && (id != idHello || len(body) != 2) {
		err = errors.New("it is not a master")
	}
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint16(body), nil
}

// readHello returns the sender.
func readHello(r io.Reader, m quorum.Members) (quorum.ID, error) {
	id, b, err := readFrame(r, 2+helloSize)
	if err != nil {
		return 0, err
	}
	if id != idHello || len(b) != helloSize {
		return 0, errors.New("the other end is not a master")
	}
	sum := sha256.Sum256([]byte(m.Names()))
	if !bytes.Equal(sum[:], b[:sha256.Size]) {
		return 0, errors.New("the other master was told another list of masters")
	}
	from, to := quorum.ID(binary.BigEndian.Uint64(b[sha256.Size:])), quorum.ID(binary.BigEndian.Uint64(b[sha256.Size+8:]))
	switch {
	case to != m.Self():
		return 0, errors.New("the other master takes this one for " + m.Name(to))
	case !m.Has(from) || from == m.Self():
		return 0, errors.New("the other master says that it is " + m.Name(from))
	}
	return from, nil
}

// dial keeps a connection to another master for as long as the node lives.
func (n *Node) dial(l *link) {
	pause := leastPause
	for {
		nc, err := n.connect(l)
		if err == nil {
			n.say(slog.LevelInfo, l, "connected to another master")
			began := time.Now()
			l.drain()
			err = n.write(l, nc)
			n.crowd.leave(nc)
			nc.Close()
			if time.Since(began) > steady {
				pause = leastPause
			}
		}
		if n.over.Err() != nil {
			return
		}
		n.say(slog.LevelWarn, l, "another master is out of reach: "+err.Error())
		t := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-t.C:
		case <-n.over.Done():
		}
		t.Stop()
		pause = min(2*pause, mostPause)
	}
}

// say logs something about another master, of each level at most once a minute.
func (n *Node) say(level slog.Level, l *link, text string) {
	if now := time.Now(); now.Sub(l.said[level]) >= time.Minute {
		n.log.Log(n.over, level, text, "kind", "masters", "master", l.addr, "more", l.more[level])
		l.said[level], l.more[level] = now, 0
		return
	}
	l.more[level]++
}

// connect returns a connection on which the other master has answered the hello.
func (n *Node) connect(l *link) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(n.over, shakeTime)
	defer cancel()
	nc, err := transport.Dial(ctx, "tcp", l.addr)
	if err != nil {
		return nil, err
	}
	_ = platform.TuneMaster(nc) // it works without
	nc, err = n.guard.Dial(ctx, transport.Quiet(nc), secure.Want{Purpose: secure.Quorum})
	if err != nil {
		return nil, err
	}
	if !n.crowd.enter(nc) {
		nc.Close()
		return nil, net.ErrClosed
	}
	nc.SetDeadline(time.Now().Add(shakeTime))
	_, err = nc.Write(hello(n.members, l.to))
	var port uint16
	if err == nil {
		port, err = readWelcome(nc)
	}
	if err != nil {
		n.crowd.leave(nc)
		nc.Close()
		return nil, err
	}
	nc.SetDeadline(time.Time{})
	if n.guard != nil {
		n.crowd.proved(l.to)
	}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok && port != 0 {
		l.serves.Store(new(netip.AddrPortFrom(a.AddrPort().Addr().Unmap().WithZone(""), port)))
	}
	return nc, nil
}

// write sends what the machine has to say until the connection breaks.
func (n *Node) write(l *link, nc net.Conn) error {
	broken := make(chan error, 1)
	n.run(func() { // nothing comes here but the end
		_, err := nc.Read(make([]byte, 1))
		if err == nil {
			err = errors.New("it says something where it has nothing to say")
		}
		broken <- err
	})
	defer nc.Close()
	var buf []byte
	for {
		select {
		case body := <-l.queue:
			buf = appendFrame(buf[:0], idMessage, body)
			nc.SetWriteDeadline(time.Now().Add(writeTime))
			if _, err := nc.Write(buf); err != nil {
				return err
			}
		case err := <-broken:
			return err
		case <-n.over.Done():
			return n.over.Err()
		}
	}
}

// accept takes connections of other masters.
func (n *Node) accept() {
	platform.AcceptLoop(n.ln, n.over.Done(), func(nc net.Conn) {
		nc = n.guard.Wrap(transport.Quiet(nc), secure.Quorum)
		if !n.crowd.enter(nc) {
			nc.Close()
			return
		}
		place := n.strangers.Enter(nc.RemoteAddr(), func() { nc.Close() })
		n.run(func() {
			defer func() {
				nc.Close()
				place.Leave()
				n.crowd.leave(nc)
			}()
			n.read(nc, place)
		})
	}, func(err error) { n.log.Warn("no connection could be accepted", "kind", "masters", "error", err) })
}

// read passes the messages of a connection on.
func (n *Node) read(nc net.Conn, place *sockets.Place) {
	nc.SetDeadline(time.Now().Add(shakeTime))
	ctx, cancel := context.WithTimeout(n.over, shakeTime)
	id, err := n.guard.Greet(ctx, nc, secure.Want{Purpose: secure.Quorum})
	cancel()
	var from quorum.ID
	r := bufio.NewReader(nc)
	if err == nil {
		from, err = readHello(r, n.members)
	}
	speaks := speaker{nc, id.Name == ""}
	if err == nil && !n.crowd.believes(from, speaks) {
		err = errors.New("it says in plaintext that it is " + n.members.Name(from) + ", which has a certificate: if that one has gone back to plaintext, restart this master")
	}
	if err == nil {
		_, err = nc.Write(welcome(n.opt.Serves))
	}
	if place.Leave() {
		return // it has made room for another one
	}
	if err != nil {
		if due, more := n.strange.Due(nc.RemoteAddr(), "stranger", time.Now()); due {
			n.log.Warn("connection refused: "+err.Error(), "kind", "stranger", "remote", nc.RemoteAddr().String(), "more", more)
		}
		return
	}
	nc.SetDeadline(time.Time{})
	if !n.crowd.know(from, speaks) {
		return // that one has shown its certificate meanwhile
	}
	for {
		id, body, err := readFrame(r, maxFrame)
		if err != nil || id != idMessage {
			break
		}
		if !n.post(quorum.Message{From: from, Body: body}) {
			return
		}
	}
	if n.crowd.forget(from, nc) {
		n.post(quorum.Broken{From: from})
	}
}

// crowd are all connections.
type crowd struct {
	mu     sync.Mutex
	closed bool
	all    map[net.Conn]struct{}
	of     map[quorum.ID]speaker // the last one on which a master has said a hello
	// named are the masters that have shown a certificate since this one has begun: who speaks
	// for them in plaintext is another one from then on.
	named map[quorum.ID]bool
}

// speaker is a connection that speaks for a master.
type speaker struct {
	net.Conn
	plain bool // nobody has shown a certificate there
}

// enter counts a connection. false: the node has ended.
func (c *crowd) enter(nc net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.all[nc] = struct{}{}
	}
	return !c.closed
}

func (c *crowd) leave(nc net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, nc)
}

// believes reports whether a connection may speak for a master. A certificate counts from then
// on, before its owner is welcomed: nobody else is after that.
func (c *crowd) believes(from quorum.ID, s speaker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.plain {
		c.named[from] = true
	}
	return !s.plain || !c.named[from]
}

// know makes a connection that of a master, if that may be, and ends the one that it had.
func (c *crowd) know(from quorum.ID, s speaker) bool {
	c.mu.Lock()
	if s.plain && c.named[from] {
		c.mu.Unlock()
		return false
	}
	before, had := c.of[from]
	c.of[from] = s
	c.mu.Unlock()
	if had {
		before.Close()
	}
	return true
}

// proved says that a master that was dialled has shown a certificate, and ends what speaks for
// it without one.
func (c *crowd) proved(to quorum.ID) {
	c.mu.Lock()
	c.named[to] = true
	s := c.of[to]
	c.mu.Unlock()
	if s.plain {
		s.Close()
	}
}

// forget reports whether a connection that has ended was that of its master.
func (c *crowd) forget(from quorum.ID, nc net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[from].Conn != nc {
		return false
	}
	delete(c.of, from)
	return true
}

func (c *crowd) close() {
	c.mu.Lock()
	c.closed = true
	all := slices.Collect(maps.Keys(c.all))
	c.mu.Unlock()
	for _, nc := range all {
		nc.Close()
	}
}
