//go:build !race

package rocl_test

const raceEnabled = false
