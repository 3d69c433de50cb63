package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/examples/trainers"
)

// Config of a demo.
type Config struct {
	Peers    int           // processes at the start, at least 3
	Joiners  int           // processes that join later
	Duration time.Duration // of the training; the end takes a few steps more
	Page     string        // file to write; empty: none
	Out      io.Writer     // progress and table
	Terminal bool          // Out is a terminal: one line is overwritten in place
	// Command returns the command of a peer process, which runs Peer.
	Command func(master string) *exec.Cmd
	Logger  *slog.Logger // of the master; may be nil
}

// Shares of the duration at which things happen.
const (
	killAt    = 0.45
	firstJoin = 0.25
	lastJoin  = 0.65
	// patience is how long the run may be silent before the demo gives up.
	patience = 30 * time.Second
	// lead is how many steps ahead the end is announced, so that no peer has
	// passed it when it hears of it.
	lead = 3
)

// director leads a demo: it starts, kills and stops processes and records what
// they report. Everything happens on the goroutine of Run.
type director struct {
	Config
	rec     Record
	start   time.Time
	master  string
	in      chan message
	procs   []*process
	step    uint64
	shown   time.Duration // when the last plain progress line was written
	victim  int           // to be killed at its next reduce; -1: none
	killed  uint64        // step of the last kill
	stopped bool
}

// Run does the demo and returns its record. An error says why it could not be
// carried through; a record that is not as it should be is not an error (Verdict).
func Run(ctx context.Context, cfg Config) (*Record, error) {
	if cfg.Peers < 3 {
		return nil, errors.New("demo: at least 3 peers are needed, since one is killed")
	}
	m, err := core.NewMaster(core.MasterOptions{Listen: "127.0.0.1:0", Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- m.Run(ctx) }()
	defer func() {
		cancel()
		<-served
		m.Close()
	}()

	d := &director{
		Config: cfg, start: time.Now(), master: m.Addr().String(),
		in: make(chan message, 256), victim: -1,
	}
	d.rec.Started = cfg.Peers
	defer d.killAll()
	d.say("master on %s, %d peers train for %v; one will be killed, %d will join", d.master, cfg.Peers, cfg.Duration, cfg.Joiners)
	for range cfg.Peers {
		if err := d.spawn(); err != nil {
			return nil, err
		}
	}
	if err := d.direct(ctx); err != nil {
		return nil, err
	}
	if cfg.Page != "" {
		if err := d.writePage(); err != nil {
			return nil, err
		}
	}
	return &d.rec, nil
}

func (d *director) spawn() error {
	n := len(d.procs)
	p, err := spawn(n, d.Command(d.master), d.in)
	if err != nil {
		return fmt.Errorf("demo: start peer %d: %w", n+1, err)
	}
	d.procs = append(d.procs, p)
	return nil
}

// direct follows the script until every process has ended.
func (d *director) direct(ctx context.Context) error {
	quiet := time.NewTimer(patience)
	defer quiet.Stop()
	type cue struct {
		at time.Duration
		do func() error
	}
	part := func(f float64) time.Duration { return time.Duration(f * float64(d.Duration)) }
	script := []cue{}
	for i := range d.Joiners {
		at := part(firstJoin)
		if d.Joiners > 1 {
			at += part(lastJoin-firstJoin) * time.Duration(i) / time.Duration(d.Joiners-1)
		}
		script = append(script, cue{at, d.spawn})
	}
	script = append(script,
		cue{part(killAt), func() error { d.victim = 1; return nil }},
		cue{d.Duration, func() error { d.stop(); return nil }})
	cues := make(chan func() error, len(script))
	for _, c := range script {
		t := time.AfterFunc(c.at, func() { cues <- c.do })
		defer t.Stop()
	}

	for d.alive() > 0 {
		select {
		case <-ctx.Done():
			return errors.New("demo: interrupted")
		case do := <-cues:
			if err := do(); err != nil {
				return err
			}
		case m := <-d.in:
			quiet.Reset(patience)
			d.handle(m)
		case <-quiet.C:
			return fmt.Errorf("demo: no peer has said anything for %v", patience)
		}
	}
	return nil
}

// stop ends the run a few steps ahead, at the same step for all.
func (d *director) stop() {
	d.stopped = true
	for _, p := range d.procs {
		if p.live {
			p.stopAt(d.step + lead)
		}
	}
}

func (d *director) handle(m message) {
	at, p := time.Since(d.start), d.procs[m.peer]
	if m.ended {
		p.live = false
		p.stdin.Close()
		if !d.rec.life(m.peer).ended {
			reason := "ended too early"
			if m.err != nil {
				reason += ": " + m.err.Error()
			}
			d.mark(Mark{at, "trouble", m.peer, fmt.Sprintf("peer %d %s", m.peer+1, reason)})
		}
		return
	}
	if m.event.Kind == trainers.Reduce && m.peer == d.victim && p.live && !d.rec.life(m.peer).ended {
		p.kill()
		d.victim, d.killed = -1, m.event.Step
		d.rec.Kill(at, m.peer, m.event.Step)
		d.announce()
		return
	}
	marks := len(d.rec.Marks)
	point, isNew := d.rec.Add(at, m.peer, m.event)
	if len(d.rec.Marks) > marks {
		d.announce()
	}
	if isNew {
		d.step = point.Step
		d.progress(point)
		d.killAgain()
	}
}

// killAgain picks another victim if a kill came so late that its reduce was
// complete: the demo promises an aborted one.
func (d *director) killAgain() {
	if d.rec.Kills == 0 || d.rec.Aborted() > 0 || d.victim >= 0 || d.stopped || d.step < d.killed+lead || d.alive() < 3 {
		return
	}
	for i, p := range d.procs {
		if i > 0 && p.live && d.rec.Lives[i].joined {
			d.victim = i
			return
		}
	}
}

func (d *director) alive() int {
	n := 0
	for _, p := range d.procs {
		if p.live {
			n++
		}
	}
	return n
}

func (d *director) killAll() {
	for _, p := range d.procs {
		if p.live {
			p.kill()
		}
	}
	for _, p := range d.procs {
		for p.live {
			if m := <-d.in; m.ended {
				d.procs[m.peer].live = false
			}
		}
	}
}

func (d *director) mark(m Mark) {
	d.rec.Mark(m)
	d.announce()
}

// announce writes the newest mark as a line of its own.
func (d *director) announce() {
	m := d.rec.Marks[len(d.rec.Marks)-1]
	d.say("%6.1f s  %s", m.At.Seconds(), m.Text)
}

func (d *director) say(format string, args ...any) {
	if d.Terminal {
		fmt.Fprint(d.Out, "\r\x1b[K") // over the progress line
	}
	fmt.Fprintf(d.Out, format+"\n", args...)
}

// progress shows where the run is: in place on a terminal, else a line a second.
func (d *director) progress(p Point) {
	// It must fit into 80 columns: a wrapped line cannot be overwritten.
	line := fmt.Sprintf("%6.1f s  step %-4d  world %d  loss %.4f  state %.8s  sent %s",
		p.At.Seconds(), p.Step, p.World, p.Loss, p.Hash, trainers.Size(p.Tx))
	switch {
	case d.Terminal:
		fmt.Fprint(d.Out, "\r\x1b[K\x1b[2m"+line+"\x1b[0m")
	case p.At-d.shown >= time.Second || p.Step == 1:
		fmt.Fprintln(d.Out, line)
		d.shown = p.At
	}
}

func (d *director) writePage() error {
	f, err := os.Create(d.Page)
	if err != nil {
		return err
	}
	if err := d.rec.Page(f, d.start); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// Summary writes the closing table.
func Summary(w io.Writer, rec *Record, page string) {
	width := 0
	for _, row := range rec.Table() {
		width = max(width, len(row.Name))
	}
	fmt.Fprintln(w)
	for _, row := range rec.Table() {
		fmt.Fprintf(w, "  %-"+strconv.Itoa(width)+"s  %s\n", row.Name, row.Value)
	}
	fmt.Fprintln(w)
	if problems := rec.Verdict(); len(problems) > 0 {
		fmt.Fprintln(w, "WRONG: "+strings.Join(problems, "; "))
	} else {
		fmt.Fprintln(w, "all peers held the same bits after every step")
	}
	if page != "" {
		fmt.Fprintln(w, "the whole story: "+page)
	}
}
