package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/latency/sanitize"
)

// console is the screen and the serial lines that the kernel's command line names. Screens show the current state,
// redrawn each second; serial lines get each message once, and the state when it changes.
type console struct {
	mu       sync.Mutex
	screens  []*os.File
	serials  []*os.File
	messages []string // the last ones
	asking   bool     // a question is on the screens
	Lines    chan string
}

const kept = 12 // messages on a screen

func openConsole() *console {
	c := &console{Lines: make(chan string)}
	active, _ := os.ReadFile("/sys/class/tty/console/active")
	for _, name := range strings.Fields(string(active)) {
		screen := name == "tty0"
		f, err := os.OpenFile("/dev/"+name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if _, err := f.WriteString("\r"); err != nil { // a serial line without a port
			f.Close()
			continue
		}
		if screen {
			c.screens = append(c.screens, f)
		} else {
			c.serials = append(c.serials, f)
		}
		go c.read(f)
	}
	return c
}

func (c *console) read(f *os.File) {
	for in := bufio.NewScanner(f); in.Scan(); {
		c.Lines <- strings.TrimSpace(in.Text())
	}
}

// say prints a message.
func (c *console) say(format string, a ...any) {
	text := sanitize.Text(fmt.Sprintf(format, a...))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages = append(c.messages, time.Now().UTC().Format("15:04:05 ")+text)
	c.messages = c.messages[max(0, len(c.messages)-kept):]
	for _, f := range c.serials {
		fmt.Fprintf(f, "rebound: %s\r\n", text)
	}
	if c.asking {
		for _, f := range c.screens {
			fmt.Fprintf(f, "%s\r\n", text)
		}
	}
}

// draw shows the state on the screens.
func (c *console) draw(state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking {
		return
	}
	text := "\x1b[H\x1b[2J" + state + "\n" + strings.Join(c.messages, "\n") + "\n"
	for _, f := range c.screens {
		f.WriteString(strings.ReplaceAll(text, "\n", "\r\n"))
	}
}

// line prints one line on serial lines only.
func (c *console) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.serials {
		fmt.Fprintf(f, "rebound: %s\r\n", text)
	}
}

// ask prints a question everywhere. The answer comes from Lines.
func (c *console) ask(question string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range append(c.screens[:len(c.screens):len(c.screens)], c.serials...) {
		if !c.asking && len(c.screens) > 0 && f == c.screens[0] {
			f.WriteString("\x1b[H\x1b[2J")
		}
		f.WriteString(strings.ReplaceAll(question, "\n", "\r\n"))
	}
	c.asking = true
}

func (c *console) answered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking = false
}
