package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// maxAnswer bounds an answer. Etcd takes no value above 1.5 MiB, unless told to.
const maxAnswer = 32 << 20

// The messages of etcd's gateway, as far as they are needed here. Bytes are base64, and
// numbers are strings.
type (
	txn struct {
		Compare []compare `json:"compare,omitempty"`
		Success []op      `json:"success,omitempty"`
	}
	compare struct {
		Key     []byte `json:"key"`
		Target  string `json:"target"` // CREATE or MOD
		Created *int64 `json:"create_revision,string,omitempty"`
		Changed *int64 `json:"mod_revision,string,omitempty"`
	}
	op struct {
		Put   *putOp   `json:"request_put,omitempty"`
		Range *rangeOp `json:"request_range,omitempty"`
	}
	putOp struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
		Lease int64  `json:"lease,string,omitempty"`
	}
	rangeOp struct {
		Key []byte `json:"key"`
	}
	answer struct {
		Header struct {
			Revision int64 `json:"revision,string"`
		} `json:"header"`
		Succeeded bool `json:"succeeded"`
		Responses []struct {
			Range struct {
				KVs []pair `json:"kvs"`
			} `json:"response_range"`
		} `json:"responses"`
	}
	pair struct {
		Value   []byte `json:"value"`
		Changed int64  `json:"mod_revision,string"`
	}
)

func get(key []byte) op { return op{Range: &rangeOp{key}} }

func put(key, value []byte, lease int64) op { return op{Put: &putOp{key, value, lease}} }

// kvs returns what the i-th operation has found.
func (a *answer) kvs(i int) []pair {
	if i >= len(a.Responses) {
		return nil
	}
	return a.Responses[i].Range.KVs
}

// txn does all of t, or nothing.
func (a *Authority) txn(ctx context.Context, t txn) (out answer, err error) {
	err = a.call(ctx, "kv/txn", t, &out)
	return out, err
}

// refusal is an answer of etcd that is not what was asked for.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("etcd answers %d: %s", r.status, r.text) }

// call asks one of the cluster after the other until one answers.
func (a *Authority) call(ctx context.Context, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	a.mu.Lock()
	all := slices.Clone(a.at)
	a.mu.Unlock()
	var failed error
	for i, at := range all {
		err := a.post(ctx, at, method, body, out)
		var no *refusal
		if err == nil || errors.As(err, &no) && no.status < 500 || ctx.Err() != nil {
			if i > 0 && err == nil {
				a.prefer(at)
			}
			return err
		}
		failed = err
	}
	return failed
}

// prefer makes at the one that is asked first.
func (a *Authority) prefer(at string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.at, at); i > 0 {
		a.at = slices.Insert(slices.Delete(slices.Clone(a.at), i, i+1), 0, at)
	}
}

func (a *Authority) send(ctx context.Context, url, token string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(b) > maxAnswer:
		return fmt.Errorf("etcd answers with more than %d bytes", maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return &refusal{resp.StatusCode, string(b[:min(len(b), 300)])}
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("this is not an etcd of version 3.4 or later: %w", err)
	}
	return nil
}
