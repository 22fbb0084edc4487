// SPDX-License-Identifier: Apache-2.0

package election

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
)

// The attributes of a claim, which is the resource of a holder or a standby. Numbers are decimal.
const (
	// AttrName has the attributes of the name as text. Holder and standbys have it.
	AttrName = prefix + "name"
	// AttrClaim is the place in the queue: the least number is the oldest claim. Holder and
	// standbys have it. A claim that was just registered has none, and others wait until it has.
	AttrClaim = prefix + "claim"
	// AttrNumber is the fencing number, as of [Term.Number]. Only the holder has it.
	AttrNumber = prefix + "number"

	// attrAbove is a number of a holder that is above the claim of a standby. The number of a
	// holder grows after a cut.
	attrAbove = prefix + "above"

	prefix = "election."
)

// A claim is what the attributes of a claim say.
type claim struct {
	id     rocl.GID
	order  uint64 // the place in the queue
	number uint64 // the fencing number; 0: a standby
	above  uint64 // of a standby: the number of a holder, if that is above order
}

// greatest returns the greatest number of a holder of which the claim tells.
func (c claim) greatest() uint64 { return max(c.number, c.above) }

// wanted are the attributes of which a claim consists.
var wanted = rocl.Want(AttrClaim, AttrNumber, attrAbove)

// claimOf returns the claim of a resource. It reports false for attributes that no Hold has
// written.
func claimOf(f *rocl.Found) (c claim, ok bool) {
	c.id = f.ID
	if c.order, ok = numberOf(f, AttrClaim); !ok {
		return c, false
	}
	c.above, _ = numberOf(f, attrAbove)
	if _, holds := f.Attrs.Get(AttrNumber); holds {
		c.number, ok = numberOf(f, AttrNumber)
	}
	return c, ok
}

// numberOf returns the number in an attribute.
func numberOf(f *rocl.Found, name string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(f.Attrs.GetString(name), 10, 63)
	return n, err == nil && n > 0
}

// isOlder reports whether c is an older claim than d.
func (c claim) isOlder(d claim) bool {
	return c.order < d.order || c.order == d.order && c.id.Compare(d.id) < 0
}

// tail is how many low bits of a number are random. The bits above are microseconds since 1970, or
// more: see [next]. So numbers fit into 63 bits until the year 2112.
const tail = 11

// next returns a number above than. It is also above every number that was made by a clock that was
// behind this one. The random bits make it unlikely that two sides of a cut make the same number.
func next(than uint64) (uint64, error) {
	at := max(ticks(), than>>tail+1)
	if at > math.MaxInt64>>tail {
		return 0, fmt.Errorf("%w: the number %d", ErrNumbers, than)
	}
	return at<<tail | rand.Uint64N(1<<tail), nil
}

// ticks returns the microseconds since 1970.
func ticks() uint64 { return uint64(max(time.Now().UnixMicro(), 0)) }

// pass waits until the clock is past the microsecond of a number, if that is the present one. What
// next returns from then on is above the number.
func pass(number uint64) {
	for ticks() == number>>tail {
		time.Sleep(time.Microsecond) // of virtual time: a real clock has passed
	}
}

// nameText returns the attributes of a name as text: the same for the same attributes, in whichever
// order.
func nameText(name *rocl.List) (string, error) {
	var all []string
	for n, v := range name.All() {
		if strings.HasPrefix(n, prefix) {
			return "", fmt.Errorf("%w: %q", rocl.ErrReservedName, n)
		}
		all = append(all, strconv.Quote(n)+"="+strconv.Quote(string(v)))
	}
	if len(all) == 0 || len(all) < name.Len() {
		return "", fmt.Errorf("%w: a name needs attributes, each with a value", rocl.ErrIncomplete)
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}
