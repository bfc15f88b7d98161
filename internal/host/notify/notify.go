// Package notify tells the service manager how the program fares (sd_notify(3)): when it is ready, that it is alive, when it ends.
package notify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Manager is the service manager that started this process. A nil one, where none did, hears nothing and costs nothing.
type Manager struct {
	socket   net.Conn
	watchdog time.Duration
}

// Open connects to the manager that the environment names (NOTIFY_SOCKET), and returns nil if it names none. The connection stays
// open, so that nothing need be opened once the process has given up its rights. The variables are taken out of the environment:
// they are not for the programs that this one starts.
func Open() (*Manager, error) {
	name, usec, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, v := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(v)
	}
	if name == "" {
		return nil, nil
	}
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "@") {
		return nil, fmt.Errorf("NOTIFY_SOCKET=%s: want the path of a socket, or @ and an abstract name", name)
	}
	m := &Manager{}
	if usec != "" && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
			return nil, fmt.Errorf("WATCHDOG_USEC=%s: want microseconds, up to a day", usec)
		}
		m.watchdog = time.Duration(n) * time.Microsecond
	}
	s, err := net.Dial("unixgram", name)
	if err != nil {
		return nil, fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	m.socket = s
	return m, nil
}

// Ready says that the program does its work. status is a line for its user.
func (m *Manager) Ready(status string) error { return m.send("READY=1\nSTATUS=" + oneLine(status)) }

// Stopping says that the program has begun to end.
func (m *Manager) Stopping() error { return m.send("STOPPING=1") }

// Alive says that the program still does its work.
func (m *Manager) Alive() error { return m.send("WATCHDOG=1") }

// Every is how often Alive is wanted: half of the time after which the manager gives the program up. 0 is never.
func (m *Manager) Every() time.Duration {
	if m == nil {
		return 0
	}
	return m.watchdog / 2
}

// Close ends the connection.
func (m *Manager) Close() error {
	if m == nil {
		return nil
	}
	return m.socket.Close()
}

// patience is how long a manager that does not read its socket is waited for: the end of the program tells it, too.
const patience = 2 * time.Second

func (m *Manager) send(state string) error {
	if m == nil {
		return nil
	}
	if err := m.socket.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	if _, err := m.socket.Write([]byte(state)); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	return nil
}

func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", " ") }
