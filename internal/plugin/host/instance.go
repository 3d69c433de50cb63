package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/gopccl/gopccl/plugins/proto"
)

// instance is one life of a plugin: a process and the connection to it.
type instance struct {
	spec   Spec
	proc   *process
	client *plugin.Client
	conn   *grpc.ClientConn
	bells  []*os.File // sockets of the lanes, of quantizers and backends
	files  []*os.File // ours, closed with it
	shared *os.File   // the host's memory that the plugin maps; not closed with it
	dir    string     // of go-plugin, removed with it

	running  atomic.Int32 // calls of a solver that the host still waits for
	canceled atomic.Bool  // a call was canceled; whether the plugin obeyed is not known yet

	mu     sync.Mutex
	reason error // why it was ended
}

// stopGrace is the time that a plugin has to end by itself.
const stopGrace = 500 * time.Millisecond

// launch starts a plugin and connects to it. It ends, with a running plugin or
// without a process, soon after ctx or the plugin's start timeout.
func launch(ctx context.Context, spec Spec, prepare func(*instance, *exec.Cmd) error) (*instance, error) {
	if err := spec.checkDigest(); err != nil {
		return nil, err
	}
	in := &instance{spec: spec}
	ready := make(chan *process, 1)
	out := &lines{log: spec.Logger}
	in.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  proto.Handshake,
		Plugins:          plugin.PluginSet{string(spec.Kind): proto.Service{}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         !spec.Insecure,
		StartTimeout:     spec.StartTimeout,
		SkipHostEnv:      true, // set below, before the rest
		Logger:           hclog.NewNullLogger(),
		Stderr:           out, SyncStdout: out, SyncStderr: out,
		GRPCDialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proto.MaxMessage)),
		},
		RunnerFunc: func(_ hclog.Logger, given *exec.Cmd, dir string) (runner.Runner, error) {
			in.dir = dir
			cmd := exec.Command(spec.Command, spec.Args...)
			cmd.Env = append(os.Environ(), given.Env...)
			cmd.Env = append(cmd.Env, proto.EnvWatch+"=stdin")
			if spec.MemoryLimit > 0 {
				cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", proto.EnvMemory, spec.MemoryLimit))
			}
			if prepare != nil {
				if err := prepare(in, cmd); err != nil {
					return nil, err
				}
			}
			p, err := newProcess(cmd, spec.MemoryLimit, in.shared)
			if err == nil {
				ready <- p
			}
			return p, err
		},
	})
	// go-plugin waits for several things without a bound; the end of the process
	// ends them all.
	var late error
	overdue := time.NewTimer(spec.StartTimeout)
	defer overdue.Stop()
	done, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case in.proc = <-ready:
		case <-done:
			select {
			case in.proc = <-ready:
			default:
			}
			return
		}
		select {
		case <-done:
			return
		case <-overdue.C:
			late = fmt.Errorf("it did not serve within %v", spec.StartTimeout)
		case <-ctx.Done():
			late = ctx.Err()
		}
		_ = in.proc.Kill(ctx)
		<-done
	}()
	err := in.connect()
	close(done)
	<-watched
	if late != nil {
		err = late
	}
	if err != nil {
		in.end(0, err)
		return nil, err
	}
	return in, nil
}

func (in *instance) connect() error {
	c, err := in.client.Client()
	if err != nil {
		return err
	}
	raw, err := c.Dispense(string(in.spec.Kind))
	if err != nil {
		return err
	}
	conn, ok := raw.(*grpc.ClientConn)
	if !ok {
		return errors.New("no connection")
	}
	in.conn = conn
	ctx, cancel := context.WithTimeout(context.Background(), in.spec.StartTimeout)
	defer cancel()
	return in.ping(ctx)
}

// ping is the health check of gRPC.
func (in *instance) ping(ctx context.Context) error {
	r, err := grpc_health_v1.NewHealthClient(in.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: plugin.GRPCServiceName})
	if err == nil && r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("its health is %v", r.GetStatus())
	}
	return err
}

// kill ends the process at once, for a reason that is remembered.
func (in *instance) kill(reason error) {
	in.mu.Lock()
	if in.reason == nil {
		in.reason = reason
	}
	in.mu.Unlock()
	_ = in.proc.Kill(context.Background())
}

// end stops the process, if there is one, and waits until nothing of it is
// left. It returns why it ended.
func (in *instance) end(grace time.Duration, reason error) error {
	in.mu.Lock()
	if in.reason == nil {
		in.reason = reason
	}
	reason = in.reason
	in.mu.Unlock()
	if in.proc != nil {
		in.proc.stop(grace)
	}
	in.client.Kill() // the process is gone; this closes connections and waits for goroutines
	if in.dir != "" {
		_ = os.RemoveAll(in.dir) // go-plugin leaves it if the start failed
	}
	for _, f := range in.files {
		f.Close()
	}
	return reason
}
