// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIsHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST": true, "127.0.0.1": true, "127.8.9.1": true, "::1": true, "[::1]": true, "::ffff:127.0.0.1": true,
		"": false, "10.0.0.7": false, "fd00::7": false, "0.0.0.0": false, "::": false, "localhost.example": false, "127.0.0.1:80": false,
	} {
		try.Equal(t, IsHost(host), want, "%q", host)
	}
}
