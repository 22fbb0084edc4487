// SPDX-License-Identifier: Apache-2.0

package words

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// verifies matches a call that fails the tests of a package if they leave goroutines behind.
var verifies = regexp.MustCompile(`\b(goleak\.VerifyTestMain|ownnode\.Main)\(m\b`)

// Every folder with tests has a TestMain that fails if the tests leave goroutines behind.
func TestGoroutinesAreVerified(t *testing.T) {
	isVerified := map[string]bool{}
	for _, p := range files(t, ".go") {
		if strings.HasSuffix(p, "_test.go") {
			folder := path.Dir(p)
			isVerified[folder] = isVerified[folder] || verifies.MatchString(read(t, p))
		}
	}
	for folder, is := range isVerified {
		if !is {
			t.Errorf("%s: no TestMain calls goleak.VerifyTestMain", folder)
		}
	}
	if len(isVerified) < 50 {
		t.Errorf("only %d folders with tests are found", len(isVerified))
	}
}
