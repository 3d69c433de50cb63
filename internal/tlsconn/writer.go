package tlsconn

import (
	"errors"
	"net"
	"sync"

	"github.com/gopccl/gopccl/internal/transport"
)

const (
	// smallPart: buffers below this size are gathered with what follows them.
	smallPart = 4 << 10
	// maxRecords is what one key is used for, of the 2^24.5 full records that
	// AES-GCM is good for (RFC 8446, section 5.5). crypto/tls does not change keys
	// by itself.
	maxRecords = 1 << 24
)

var errWorn = errors.New("the keys of the connection have been used up (256 GiB): connect again")

// writer seals and writes. The holder of turn owns it.
type writer struct {
	c   *Conn
	try transport.TryWriter // nil: writes wait
	all transport.VecWriter // may be nil

	turn    sync.Mutex
	one     [1][]byte // for a write of one buffer
	rest    [1][]byte // for one of ciphertext
	stage   []byte    // small buffers that were gathered; nil between calls
	staged  int
	records int64
}

// end gives the turn up.
func (w *writer) end() {
	w.one[0] = nil
	w.turn.Unlock()
	if w.c.closed.Load() {
		w.c.release()
	}
}

// TryWrite implements transport.TryWriter.
func (w *writer) TryWrite(p []byte) (int, error) {
	w.turn.Lock()
	defer w.end()
	w.one[0] = p
	return w.write(w.one[:], false)
}

// TryWriteAll implements transport.VecWriter.
func (w *writer) TryWriteAll(vec [][]byte) (int, error) {
	w.turn.Lock()
	defer w.end()
	return w.write(vec, false)
}

// WriteAll implements transport.VecWriter.
func (w *writer) WriteAll(vec [][]byte) (int, error) {
	w.turn.Lock()
	defer w.end()
	return w.write(vec, true)
}

// Flushed implements transport.Flusher.
func (w *writer) Flushed() bool { return len(w.c.pump.waiting()) == 0 }

// write is put; its error says why the connection was ended.
func (w *writer) write(vec [][]byte, wait bool) (int, error) {
	n, err := w.put(vec, wait)
	if err != nil && w.c.cause.Load() != nil {
		err = w.c.gone()
	}
	return n, err
}

// put seals and writes the buffers of vec in order, as far as it may wait, and
// returns how much plaintext was sealed.
func (w *writer) put(vec [][]byte, wait bool) (n int, err error) {
	if w.c.closed.Load() {
		return 0, net.ErrClosed
	}
	if w.c.clear.Load() {
		return w.bare(vec, wait)
	}
	if err := w.c.pump.failed(); err != nil {
		return 0, err
	}
	total := 0
	for _, b := range vec {
		total += len(b)
	}
	part, off := 0, 0
	for {
		if err := w.push(wait); err != nil {
			return n, err
		}
		if n == total || !w.Flushed() {
			return n, nil
		}
		limit := min(total-n, sealMax)
		w.c.pump.reserve(limit)
		k, err := w.seal(vec, &part, &off, limit)
		if n += k; err != nil {
			return n, err
		}
	}
}

// push writes what is sealed; without wait as much as the socket takes at once.
func (w *writer) push(wait bool) error {
	p := &w.c.pump
	for {
		b := p.waiting()
		if len(b) == 0 {
			return nil
		}
		var n int
		var err error
		switch {
		case !wait:
			n, err = w.try.TryWrite(b)
		case w.all != nil:
			w.rest[0] = b
			n, err = w.all.WriteAll(w.rest[:])
			w.rest[0] = nil
		default:
			n, err = w.c.Conn.Write(b)
		}
		p.wrote(n)
		if err != nil || n < len(b) {
			return err
		}
	}
}

// seal seals limit bytes of the buffers from vec[part][off] on, and moves both
// forward. It returns how many bytes it has sealed.
func (w *writer) seal(vec [][]byte, part, off *int, limit int) (n int, err error) {
	for n < limit {
		b := vec[*part][*off:]
		b = b[:min(len(b), limit-n)]
		k := len(b)
		switch {
		case k == 0:
		case w.staged == 0 && k >= record:
			k -= k % record
			err = w.record(b[:k])
		case w.staged == 0 && k >= smallPart:
			err = w.record(b)
		default:
			k, err = w.gather(b)
		}
		if err != nil {
			break
		}
		n += k
		if *off += k; *off == len(vec[*part]) {
			*part, *off = *part+1, 0
		}
	}
	if w.staged > 0 && err == nil {
		err = w.record(w.stage[:w.staged])
	}
	if w.stage != nil {
		w.c.pump.pool.Put(w.stage)
		w.stage, w.staged = nil, 0
	}
	return n, err
}

// gather copies what fits of b into the record of small buffers, and seals it when
// it is full.
func (w *writer) gather(b []byte) (int, error) {
	if w.stage == nil {
		w.stage = w.c.pump.pool.Get(record)
	}
	k := copy(w.stage[w.staged:], b)
	w.staged += k
	if w.staged < record {
		return k, nil
	}
	w.staged = 0
	return k, w.record(w.stage)
}

// record seals b, in as many records as it takes.
func (w *writer) record(b []byte) error {
	if w.records += int64(len(b)+record-1) / record; w.records > maxRecords {
		return errWorn
	}
	_, err := w.c.tls.Write(b)
	return err
}
