package tlsconn

import (
	"crypto/tls"
	"errors"
	"net"

	"github.com/gopccl/gopccl/internal/transport"
)

const (
	// smallPart: buffers below this size are gathered with what follows them.
	smallPart = 4 << 10
	// maxRecords is what one key is used for, of the 2^24.5 full records that
	// AES-GCM is good for (RFC 8446, section 5.5). crypto/tls does not change keys
	// by itself: Renewable does.
	maxRecords = 1 << 24
)

var errWorn = errors.New("the keys of the connection have been used up (256 GiB): connect again")

// writer seals and writes. The holder of turn owns it.
type writer struct {
	c   *Conn
	try transport.TryWriter // nil: writes wait
	all transport.VecWriter // may be nil

	turn    turn
	tls     *tls.Conn // that seals
	one     [1][]byte // for a write of one buffer
	rest    [1][]byte // for one of ciphertext
	stage   []byte    // small buffers that were gathered; nil between calls
	staged  int
	records int64
	most    int64 // of records
	ended   bool  // it has said the end: CloseWrite
}

// turn is a lock that can be waited for within bounds: who takes what is in it has it.
type turn chan struct{}

func (t turn) Lock()   { <-t }
func (t turn) Unlock() { t <- struct{}{} }

func (t turn) TryLock() bool {
	select {
	case <-t:
		return true
	default:
		return false
	}
}

// end gives the turn up.
func (w *writer) end() {
	w.one[0] = nil
	w.pass()
}

// pass is end for those that wrote nothing of their own.
func (w *writer) pass() {
	w.turn.Unlock()
	if w.c.closed.Load() {
		w.c.release()
	} else if w.c.renewals.due.Load() {
		w.c.renewDue()
	}
}

// TryWrite implements transport.TryWriter.
func (w *writer) TryWrite(p []byte) (int, error) { return w.write(p, nil, false) }

// TryWriteAll implements transport.VecWriter.
func (w *writer) TryWriteAll(vec [][]byte) (int, error) { return w.write(nil, vec, false) }

// WriteAll implements transport.VecWriter.
func (w *writer) WriteAll(vec [][]byte) (int, error) { return w.write(nil, vec, true) }

// Flushed implements transport.Flusher. What a renewal has to say is its own.
func (w *writer) Flushed() bool {
	return w.c.renewals.now.Load() != nil || len(w.c.pump.waiting()) == 0
}

// write writes p, or the buffers of vec, as far as it may wait, and returns how much was
// taken. Its error says why the connection was ended.
func (w *writer) write(p []byte, vec [][]byte, wait bool) (n int, err error) {
	for {
		if r := w.c.renewals.now.Load(); r != nil {
			if !wait {
				return n, nil
			}
			err = w.c.await(r.over, &w.c.writeBy)
		}
		var k int
		var stands bool
		if err == nil {
			k, stands, err = w.take(p, vec, n, wait)
			n += k
		}
		if err != nil && (w.c.closed.Load() || w.c.cause.Load() != nil) {
			err = w.c.gone()
		}
		if err != nil || !wait || !stands {
			return n, err
		}
	}
}

// take is put of what comes behind the first n bytes. One that may not wait takes nothing
// while another one has the turn, which may be that of a whole handshake.
func (w *writer) take(p []byte, vec [][]byte, n int, wait bool) (k int, stands bool, err error) {
	if !w.turn.TryLock() {
		if !wait {
			return 0, false, nil
		}
		if err := w.c.await(w.turn, &w.c.writeBy); err != nil {
			return 0, false, err
		}
	}
	defer w.end()
	if vec == nil {
		w.one[0] = p
		vec = w.one[:]
	}
	return w.put(vec, n, wait)
}

// put seals and writes the buffers of vec behind their first done bytes in order, as far
// as it may wait, and returns how much plaintext was sealed. stands says that the rest has
// to wait for new keys.
func (w *writer) put(vec [][]byte, done int, wait bool) (n int, stands bool, err error) {
	if w.c.closed.Load() {
		return 0, false, net.ErrClosed
	}
	if w.c.clear.Load() {
		n, err = w.bare(vec, wait)
		return n, false, err
	}
	if err := w.c.pump.failed(); err != nil {
		return 0, false, err
	}
	total := -done
	for _, b := range vec {
		total += len(b)
	}
	part, off := 0, done
	for part < len(vec) && off >= len(vec[part]) {
		part, off = part+1, off-len(vec[part])
	}
	most := sealMax
	if total > longWrite {
		most = sealLong
	}
	for {
		if n == total { // new keys are for what comes next
			return n, false, w.push(wait)
		}
		if w.wear() {
			return n, true, nil
		}
		if err := w.push(wait); err != nil {
			return n, false, err
		}
		if len(w.c.pump.waiting()) > 0 {
			return n, false, nil
		}
		limit := min(total-n, most+tailMax)
		w.c.pump.reserve(limit) // the same memory for all batches of a long write
		if n+limit < total {
			limit = most
		}
		k, err := w.seal(vec, &part, &off, limit)
		if n += k; err != nil {
			return n, false, err
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
	if w.records += int64(len(b)+record-1) / record; w.records > w.most {
		return errWorn
	}
	_, err := w.tls.Write(b)
	return err
}
