package e2e

import (
	"context"
	"path/filepath"
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
	k     keys
	files []string
	addr  string
	log   *lockedLog
	comms []*core.Communicator
}

// expiring has one stand, unless they have expired before it does. Its ends look at their
// certificates every so often.
func expiring(t *testing.T, ctx context.Context, until time.Time, every time.Duration) (r shortRun, err error) {
	t.Helper()
	r.k = lastingKeys(t, until)
	r.files = []string{r.k.file("head", secure.Master), r.k.file("gpu-0", secure.Peer), r.k.file("gpu-1", secure.Peer), r.k.file("gpu-2", secure.Peer)}
	r.addr, r.log = newRealm(t).master(func(o *core.MasterOptions) {
		o.Security.Credential, o.Security.File = nil, r.files[0]
		o.HeartbeatInterval, o.HeartbeatTimeout = every, 30*time.Second
	})
	r.comms, err = tryWorld(t, ctx, r.addr, 3, func(id int, o *core.Options) {
		o.Security.File, o.HeartbeatInterval = r.files[1+id], every
		o.ReattachTimeout = 5 * time.Second // with an expired certificate nothing leads back to the master
	})
	return r, err
}

// In the last sixth of the life of certificates, which nobody has renewed, a run stands as it
// does before: that newer ones are asked for does not part those who have just met.
func TestRunStandsWithOldCertificates(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range 10 {
		r, err := expiring(t, ctx, time.Now().Add(time.Hour), 2*time.Millisecond)
		require.NoError(t, err)
		for _, c := range r.comms {
			require.NoError(t, c.Close())
		}
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
			var r shortRun
			var until time.Time
			for life := 8 * time.Second; ; life *= 2 {
				until = time.Now().Add(life).Truncate(time.Second) // as certificates say it
				var err error
				if r, err = expiring(t, ctx, until, 50*time.Millisecond); err == nil && time.Until(until) > life/2 {
					break
				}
				t.Logf("a life of %v is too short here: %v", life, err)
				require.NoError(t, ctx.Err())
				for _, c := range r.comms {
					if c != nil {
						_ = c.Close()
					}
				}
			}
			k, files, comms := r.k, r.files, r.comms
			if rotated {
				d, err := authority.Open(k.path(), time.Now)
				require.NoError(t, err)
				for _, path := range files {
					c, err := secure.LoadCredential(path, secure.LoadOptions{})
					require.NoError(t, err)
					text, _, err := d.Rotate(c, 30*24*time.Hour)
					require.NoError(t, err)
					require.NoError(t, durable.Replace(path, text, 0o600))
				}
			}
			past := until.Add(time.Second)
			fails := each(comms, func(_ int, c *core.Communicator) error {
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
				_, err := core.Connect(ctx, core.Options{Master: r.addr, Security: core.SecurityOptions{File: files[1]}})
				require.ErrorIs(t, err, errs.InvalidConfig)
				require.ErrorContains(t, err, "the clock of this machine says")
			}
			for _, c := range comms {
				_ = c.Close()
			}
		})
	}
}
