package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/quorum"
)

// border is what all connections to masters pass, from each other and from peers. It can
// be shut around one of them: then nothing arrives and nothing ends, as when a cable is
// pulled.
type border struct {
	t      *testing.T
	mu     sync.Mutex
	around int // this master, -1: none
	open   []*crossing
	over   bool
}

// crossing is a connection over the border.
type crossing struct {
	near, far net.Conn // of who has dialled, and of the master
	ends      [2]int   // masters; -1: a peer
	lost      bool     // what it brings does not arrive, now and later
}

func (c *crossing) end() {
	c.near.Close()
	c.far.Close()
}

func newBorder(t *testing.T) *border {
	b := &border{t: t, around: -1}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.over = true
		for _, c := range b.open {
			c.end()
		}
	})
	return b
}

// The first frame between masters is u64 size, u16 id, the hash of their list, u64 sender and
// u64 receiver.
const (
	helloSender = 8 + 2 + 32
	helloSize   = helloSender + 8 + 8
)

// pass has those who dial one address reach a master at another one. ids are those of the
// masters where these talk with each other; nil: peers come.
func (b *border) pass(at, to string, master int, ids []quorum.ID) {
	ln, err := net.Listen("tcp", at)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go b.cross(nc, to, master, ids)
		}
	}()
}

func (b *border) cross(nc net.Conn, to string, master int, ids []quorum.ID) {
	from := -1
	var first []byte
	if ids != nil {
		first = make([]byte, helloSize)
		if _, err := io.ReadFull(nc, first); err != nil {
			nc.Close()
			return
		}
		from = slices.Index(ids, quorum.ID(binary.BigEndian.Uint64(first[helloSender:])))
	}
	far, err := net.Dial("tcp", to)
	if err != nil {
		nc.Close()
		return
	}
	c := &crossing{near: nc, far: far, ends: [2]int{from, master}}
	b.mu.Lock()
	c.lost = b.around >= 0 && slices.Contains(c.ends[:], b.around)
	b.open = append(b.open, c)
	over, lost := b.over, c.lost
	b.mu.Unlock()
	if over {
		c.end()
		return
	}
	if !lost {
		_, _ = far.Write(first)
	}
	go b.carry(c, far, nc)
	b.carry(c, nc, far)
}

func (b *border) carry(c *crossing, dst, src net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		b.mu.Lock()
		lost := c.lost
		b.mu.Unlock()
		switch {
		case lost && err != nil:
			return // the other end does not hear of it
		case lost:
			continue
		}
		if _, werr := dst.Write(buf[:n]); werr != nil {
			err = werr
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = dst.(*net.TCPConn).CloseWrite()
			return
		case err != nil:
			c.end()
			return
		}
	}
}

// shut closes the border around a master.
func (b *border) shut(master int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.around = master
	for _, c := range b.open {
		c.lost = c.lost || slices.Contains(c.ends[:], master)
	}
}

// reopen opens it. Connections that have lost anything end.
func (b *border) reopen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.around = -1
	for _, c := range b.open {
		if c.lost {
			c.end()
		}
	}
}

// conveneBehind starts three masters behind a border: those who dial them know only where to
// cross it.
func conveneBehind(t *testing.T, b *border, silence time.Duration) *council {
	t.Helper()
	c := &council{t: t, masters: make([]*child, 3), leads: make(chan report, 1000), lost: make(chan report, 1000)}
	at, real, dir := freeAddresses(t, 6), freeAddresses(t, 6), t.TempDir()
	var ids []quorum.ID
	for _, self := range at[3:] {
		m, err := quorum.NewMembers(at[3:], self)
		require.NoError(t, err)
		ids = append(ids, m.Self())
	}
	for i := range 3 {
		b.pass(at[i], real[i], i, nil)
		b.pass(at[3+i], real[3+i], i, ids)
		c.orders = append(c.orders, order{
			Role: "one-of-masters", ID: i, Master: real[i], Self: at[3+i], Listen: real[3+i], Peers: strings.Join(at[3:], ","),
			State: filepath.Join(dir, fmt.Sprint(i)), Silence: silence,
		})
		c.start(i)
	}
	c.known = at[:3]
	return c
}

// A leader that is cut off, from the other masters and from the peers, gives the lead up. The
// peers hear nothing from it any more, and go on with another one: no call fails, and all
// results, uuids and rings are what they were.
func TestLeaderIsCutOff(t *testing.T) {
	t.Parallel()
	const silence = 4 * time.Second
	b := newBorder(t)
	c := conveneBehind(t, b, silence)
	at := c.leader()
	k := newCrew(t, c.endpoints())
	for range 4 {
		k.add(order{World: 4, Silence: silence})
	}
	for range 4 {
		<-k.up
	}
	for range 2 {
		k.progress()
		b.shut(at)
		next := c.after(at)
		c.givesUp(at)
		for range 3 { // what was under way, what is reported late, and more
			k.progress()
		}
		require.Empty(t, k.failed())
		b.reopen()
		at = next
	}
	k.end()
	for _, p := range k.crew {
		require.Contains(t, p.log(), "no sign of life", "it has not noticed")
		require.Contains(t, p.log(), "a master has taken this peer back")
	}
}
