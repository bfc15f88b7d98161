// Package peers holds what a comparison of the responder with other echo servers needs beside the bench itself: their
// processes, a spinning UDP echo, the figures of rounds and their ratios, and a polling loop in C.
package peers
