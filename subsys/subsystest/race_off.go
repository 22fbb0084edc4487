//go:build !race

package subsystest

const raceEnabled = false
