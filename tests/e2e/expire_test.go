package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/internal/authority"
	"github.com/gopccl/gopccl/internal/durable"
)

// lastingKeys makes credentials that expire at a time.
func lastingKeys(t testing.TB, until time.Time) keys {
	dir := filepath.Join(t.TempDir(), "keys")
	then := func() time.Time { return until.Add(-30 * 24 * time.Hour) }
	_, err := authority.Init(dir, "trial", then)
	require.NoError(t, err)
	d, err := authority.Open(dir, then)
	require.NoError(t, err)
	return keys{t, d, filepath.Join(dir, "revoked.crl")}
}

// shortRun is a run of three peers whose credentials, the first of them the master's, expire.
type shortRun struct {
	t     *testing.T
	k     keys
	files []string
	every time.Duration // its ends look at their certificates at this interval
	addr  string
	log   *lockedLog
	comms []*core.Communicator
}

// expiring begins one.
func expiring(t *testing.T, until time.Time, every time.Duration) *shortRun {
	t.Helper()
	r := &shortRun{t: t, k: lastingKeys(t, until), every: every}
	r.files = []string{r.k.file("head", secure.Master), r.k.file("gpu-0", secure.Peer), r.k.file("gpu-1", secure.Peer), r.k.file("gpu-2", secure.Peer)}
	r.addr, r.log = newRealm(t).master(func(o *core.MasterOptions) {
		o.Security.Credential, o.Security.File = nil, r.files[0]
		o.HeartbeatInterval, o.HeartbeatTimeout = every, 30*time.Second
	})
	return r
}

// stand has its peers connect, unless their credentials have expired before they do.
func (r *shortRun) stand(ctx context.Context) (err error) {
	r.comms, err = tryWorld(r.t, ctx, r.addr, 3, func(id int, o *core.Options) {
		o.Security.File, o.HeartbeatInterval = r.files[1+id], r.every
		o.ReattachTimeout = 5 * time.Second // with an expired certificate nothing leads back to the master
	})
	return err
}

func (r *shortRun) close() {
	for _, c := range r.comms {
		if c != nil {
			_ = c.Close()
		}
	}
}

// rotate replaces a credential by one that lasts.
func (r *shortRun) rotate(path string) error {
	d, err := authority.Open(r.k.path(), time.Now)
	if err != nil {
		return err
	}
	c, err := secure.LoadCredential(path, secure.LoadOptions{})
	if err != nil {
		return err
	}
	text, _, err := d.Rotate(c, 30*24*time.Hour)
	if err != nil {
		return err
	}
	return durable.Replace(path, text, 0o600)
}

// Certificates are replaced while peers join: that newer ones are shown does not part those
// who have just met. In the last sixth of their life, when nobody has renewed them, the run
// stands as it does before.
func TestRunStandsWhileCertificatesAreReplaced(t *testing.T) {
	for name, replaced := range map[string]bool{"replaced": true, "old": false} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			for i := range 10 {
				t.Run(strconv.Itoa(i), func(t *testing.T) { // each ends its master
					r := expiring(t, time.Now().Add(time.Hour), 2*time.Millisecond)
					stood, over := make(chan struct{}), make(chan error, 1)
					go func() {
						var err error
						for k := 0; replaced && err == nil; k++ {
							select {
							case <-stood:
								over <- nil
								return
							case <-time.After(time.Millisecond): // others join
								err = r.rotate(r.files[1+k%3])
							}
						}
						over <- err
					}()
					err := r.stand(ctx)
					close(stood)
					require.NoError(t, errors.Join(err, <-over))
					r.close()
				})
			}
		})
	}
}

// A run outlives the certificates with which its connections were made, if its endpoints
// get others in time, and no operation is aborted. Without them it ends, and the end that
// notices first says why.
func TestCertificatesExpireInARun(t *testing.T) {
	for name, rotated := range map[string]bool{"rotated": true, "forgotten": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			// The run has to stand, and to have read its new credentials, before the first ones
			// expire. How long that takes differs: on a busy machine they are given more time.
			var r *shortRun
			var until time.Time
			for life := 8 * time.Second; ; life *= 2 {
				until = time.Now().Add(life).Truncate(time.Second) // as certificates say it
				r = expiring(t, until, 50*time.Millisecond)
				err := r.stand(ctx)
				if err == nil && time.Until(until) > life/2 {
					break
				}
				t.Logf("a life of %v is too short here: %v", life, err)
				require.NoError(t, ctx.Err())
				r.close()
			}
			for _, path := range r.files {
				if rotated {
					require.NoError(t, r.rotate(path))
				}
			}
			past := until.Add(time.Second)
			fails := each(r.comms, func(_ int, c *core.Communicator) error {
				for v := []int32{0}; v[0] == 0; time.Sleep(5 * time.Millisecond) { // what a trainer computes
					if v[0] = 0; rotated && time.Now().After(past) {
						v[0] = 1
					}
					if _, err := core.AllReduceSlice(ctx, c, v, v, core.Min); err != nil {
						return err
					}
				}
				return nil
			})
			told := false // by the end that noticed first; the others hear that it has gone
			for _, err := range fails {
				if rotated {
					require.NoError(t, err, "no operation is aborted")
					continue
				}
				require.Error(t, err)
				t.Log(err)
				told = told || strings.Contains(err.Error(), "certificate expired")
				require.False(t, time.Now().Before(until))
				require.NoError(t, ctx.Err(), "nobody waits")
			}
			if !rotated {
				if !told {
					r.log.has(t, "certificate expired")
				}
				_, err := core.Connect(ctx, core.Options{Master: r.addr, Security: core.SecurityOptions{File: r.files[1]}})
				require.ErrorIs(t, err, errs.InvalidConfig)
				require.ErrorContains(t, err, "the clock of this machine says")
			}
			r.close()
		})
	}
}
