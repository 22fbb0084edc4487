// SPDX-License-Identifier: Apache-2.0

package bench

import "slices"

// kitCases measure the packages in which programs find what they would write again, beside the
// hand-written form. Each package has a file of rows, and a group that --only can name.
var kitCases = slices.Concat(kitPickCases, kitHoldCases, kitWorkCases)

// kitGroups are the groups of rows of the bench kit.
var kitGroups = []string{"pick", "hold", "work"}

// inKit returns a condition: the flags ask for all groups, or for this one.
func inKit(group string) func(*options) bool {
	return func(o *options) bool { return o.only == "" || o.only == group }
}
