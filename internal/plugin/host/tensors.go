package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/plugin/shm"
)

// tensors is the side of a quantizer or backend plugin that computes. Its
// memory outlives the plugin's processes; the sockets are those of one.
type tensors struct {
	*Plugin
	memory *shm.Memory
	lanes  chan *lane
}

// lane is one call at a time. It is owned by who took it from the channel.
type lane struct {
	number int
	area   []byte
	frame  shm.Frame
	b      []byte
}

const (
	numLanes = 4
	// operandBytes bounds one operand. The pages of an area exist once used, and
	// go after calls that used more than keepBytes.
	operandBytes = 1 << 30
	keepBytes    = 16 << 20
	// pieceBytes is how much of an operand is worked on at once where elements
	// are independent: enough to make the call cheap, little enough for a cache.
	pieceBytes = 1 << 20
	// callLimit bounds one call of a plugin without a time limit.
	callLimit = 5 * time.Second
)

// startTensors starts a plugin of spec's kind; describe is asked of every
// process before it is used.
func startTensors(spec Spec, describe func(*instance) error) (*tensors, error) {
	m, err := shm.New(numLanes * shm.Operands * operandBytes)
	if err != nil {
		return nil, spec.fail(errs.InvalidUsage, "share memory", err)
	}
	t := &tensors{memory: m, lanes: make(chan *lane, numLanes)}
	for i := range numLanes {
		const area = shm.Operands * operandBytes
		t.lanes <- &lane{number: i, area: m.Bytes[i*area : (i+1)*area : (i+1)*area], b: make([]byte, shm.FrameBytes)}
	}
	t.Plugin, err = start(spec, kind{prepare: t.inherit, accept: describe})
	if err != nil {
		m.Close()
		return nil, err
	}
	return t, nil
}

// inherit gives cmd the memory and one end of a socket pair per lane, and the
// instance the other ends. What cmd is given is closed here once it has it.
func (t *tensors) inherit(in *instance, cmd *exec.Cmd) error {
	memory, err := shm.Dup(t.memory.File)
	if err != nil {
		return err
	}
	cmd.ExtraFiles, in.shared = []*os.File{memory}, t.memory.File
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", shm.EnvLanes, numLanes), fmt.Sprintf("%s=%d", shm.EnvArea, shm.Operands*operandBytes))
	for range numLanes {
		ours, theirs, err := shm.Pair()
		if err != nil {
			for _, f := range cmd.ExtraFiles {
				f.Close()
			}
			return err
		}
		in.bells, in.files = append(in.bells, ours), append(in.files, ours)
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	}
	return nil
}

// Close ends the plugin. Nobody may compute with it any more.
func (t *tensors) Close() error {
	t.Plugin.Close()
	for range numLanes {
		<-t.lanes // calls that run end first
	}
	return t.memory.Close()
}

// errRefused says that the plugin is well and cannot do what it was asked.
var errRefused = errors.New("the plugin refused the call")

// exchange sends the lane's frame and reads the answer into it.
func (t *tensors) exchange(in *instance, l *lane) error {
	limit := t.spec.TimeLimit
	if limit == 0 {
		limit = callLimit
	}
	call := l.frame.Call
	l.frame.Put(l.b)
	bell := in.bells[l.number]
	err := bell.SetDeadline(time.Now().Add(limit))
	if err == nil {
		_, err = bell.Write(l.b)
	}
	if err == nil {
		_, err = io.ReadFull(bell, l.b)
	}
	if err == nil {
		err = l.frame.Get(l.b)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("it hangs: a call took longer than %v", limit)
	case err != nil:
		err = fmt.Errorf("a call was not answered: %w", err)
	case l.frame.Failed:
		return fmt.Errorf("%w: %s", errRefused, strings.TrimRight(string(l.frame.Text[:]), "\x00"))
	case l.frame.Call != call:
		err = errors.New("a call was answered with another")
	}
	if err != nil {
		in.kill(err) // the socket is out of step
	}
	return err
}

// operands returns where operands of the lane lie: offsets and memory.
func (l *lane) operand(i, bytes int) (uint64, []byte) {
	at := i * operandBytes
	return uint64(at), l.area[at:][:bytes]
}

// done gives the lane back.
func (t *tensors) done(l *lane, used int) {
	if used > keepBytes {
		for i := range shm.Operands {
			shm.Release(l.area[i*operandBytes:][:operandBytes])
		}
	}
	t.lanes <- l
}
