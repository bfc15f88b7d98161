package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// appliance is this machine.
type appliance struct {
	console  *console
	shown    shown
	children children
	stick    stick
	network  network
	watchdog watchdog
	usage    usage
	url      string   // of the configuration, or the name of a cloud; empty for the stick
	words    []string // settings on the kernel's command line
	texts    chan string
	settled  sync.Once
}

// boot is the first process. It never returns.
func boot() {
	a := &appliance{children: children{ours: map[int]bool{}}, texts: make(chan string, 1),
		network: network{changed: make(chan struct{}, 1)}}
	err := prepare()
	a.console = openConsole()
	said := ""
	a.network.report = func(text string, worthSaying bool) {
		a.shown.set(func(s *status) { s.Management = text })
		if worthSaying && text != said {
			said = text
			a.console.say("management: %s", text)
		}
	}
	release := release()
	built, _ := process.BuildStamp()
	a.shown.set(func(s *status) {
		*s = status{Name: "rebound", Version: built, Kernel: release, Started: time.Now(), State: "starting",
			Stick: "not found", Watchdog: "not open yet",
			Configuration: "none yet", Clock: "not synchronized", Missing: missing(kernelLine())}
	})
	a.complain(err)
	go a.children.reap()
	mods, err := readModules()
	if err == nil {
		err = errors.Join(mods.load("vfio_pci", "vfio_iommu_type1", "vfat", "nls_cp437", "nls_ascii", "nls_iso8859_1",
			"nls_utf8", "button", "evdev", "efivarfs", "sd_mod",
			"usb_storage", "uas", "ib_uverbs", "8021q"), mods.loadForDevices())
	}
	a.complain(err)
	if exists("/sys/firmware/efi/efivars") {
		a.complain(mount("efivarfs", "/sys/firmware/efi/efivars", "efivarfs", unix.MS_RDONLY|unix.MS_NOSUID, ""))
	}
	performance()
	a.complain(loopback())
	a.url, a.words = fromKernel(kernelLine())
	go func() { // a disk behind a USB bus appears later
		for {
			time.Sleep(2 * time.Second)
			mods.loadForDevices()
		}
	}()
	asked := orders()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.serve(ctx)
	}()
	o := a.beat(asked)
	a.console.say("shutting down")
	stop()
	a.watchdog.beat(time.Now())
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
	}
	a.stick.mu.Lock() // nothing writes to it any more
	unix.Sync()
	a.watchdog.disarm()
	a.console.say("the stick can be pulled")
	unix.Reboot(int(o))
	select {}
}

func (a *appliance) complain(err error) {
	if err != nil {
		a.console.say("%v", err)
	}
}

func release() string {
	var u unix.Utsname
	unix.Uname(&u)
	return unix.ByteSliceToString(u.Release[:])
}

// missing returns the words that matter for latency and that are not on the kernel's command line, as when a boot
// loader replaced it.
func missing(line string) (out []string) {
	for _, name := range []string{"isolcpus", "nohz_full", "rcu_nocbs", "panic"} {
		if !slices.ContainsFunc(strings.Fields(line), func(w string) bool { return strings.HasPrefix(w, name+"=") }) {
			out = append(out, name)
		}
	}
	return out
}

// beat redraws the screen and keeps the watchdog content each second, until this machine is to end.
func (a *appliance) beat(asked <-chan order) order {
	t := time.NewTicker(time.Second)
	said, saidAt := "", time.Now()
	for {
		select {
		case o := <-asked:
			return o
		case <-t.C:
		}
		s := a.shown.get()
		a.console.draw(s.text())
		if text := s.summary(); text != said && time.Since(saidAt) > 2*time.Second {
			a.console.line(text)
			said, saidAt = text, time.Now()
		}
		a.watchdog.beat(time.Now())
	}
}

// serve finds the configuration and does what it says, again for each new one.
func (a *appliance) serve(ctx context.Context) {
	go a.findStick(ctx)
	if a.url != "" {
		a.shown.set(func(s *status) { s.Configuration = a.url })
	}
	text, known := "", false
	if a.url == "" && len(a.words) == 0 {
		text, known = a.firstText(ctx)
	} else if a.url == "" {
		known = true
		text, _ = a.firstText(ctx)
	}
	for ctx.Err() == nil {
		text, known = a.one(ctx, text, known)
	}
}

// firstText waits for the stick: long if the firmware says that there is one.
func (a *appliance) firstText(ctx context.Context) (string, bool) {
	patience := 5 * time.Second
	if efiVariable("LoaderDevicePartUUID") != "" {
		patience = 30 * time.Second
	}
	select {
	case text := <-a.texts:
		return text, true
	case <-ctx.Done():
	case <-time.After(patience):
	}
	return "", false
}

// one runs one configuration until there is another one, which it returns.
func (a *appliance) one(ctx context.Context, text string, known bool) (next string, nextKnown bool) {
	ctx, stop := context.WithCancel(ctx)
	var parts []chan struct{}
	part := func(f func()) {
		done := make(chan struct{})
		parts = append(parts, done)
		go func() { defer close(done); f() }()
	}
	defer func() {
		stop()
		for _, p := range parts {
			<-p
		}
	}()
	c, err := parse(text, a.words)
	if a.url != "" && !known { // defaults, and the words, until the file is there
		err = nil
	}
	a.shown.set(func(s *status) { s.Name, s.Mode, s.Problem, s.Core, s.Card = c.name, "", "", nil, "" })
	unix.Sethostname([]byte(c.name))
	devices, e := c.underTest()
	a.complain(e)
	without := devices
	if c.mode == "respond" && (!c.answers || len(devices) > 1) {
		without = nil // nothing is answered on any of them
	}
	web, e := a.serveWeb(c.port)
	a.complain(e)
	if web != nil {
		defer web.Close()
	}
	part(func() { a.network.serve(ctx, c, without) })
	part(func() {
		keepClock(ctx, c, func() []string { _, _, servers := a.network.get(); return servers },
			func(text string, worthSaying bool) {
				a.shown.set(func(s *status) { s.Clock = text })
				if worthSaying {
					a.console.say("clock: %s", text)
				}
			})
	})
	if text := a.watchdog.open(c.watchdog); text != "" {
		a.shown.set(func(s *status) { s.Watchdog = text })
	}
	if a.url != "" {
		part(func() { a.fetch(ctx, text, known) })
	}
	switch {
	case a.url != "" && !known:
		a.shown.set(func(s *status) { s.State = "waiting for the configuration" })
	case err != nil:
		a.waitForCorrection(err)
	case c.mode == "respond" && !c.answers:
		answers := make(chan string, 1)
		part(func() { a.questions(ctx, text, answers) })
		select {
		case <-ctx.Done():
			return text, known
		case text := <-answers:
			return text, true
		case text := <-a.texts:
			return text, true
		}
	default:
		part(func() {
			for ctx.Err() == nil {
				var w wrong
				err := a.runMode(ctx, c, devices)
				if ctx.Err() != nil {
					return
				}
				if errors.As(err, &w) || err == nil {
					a.waitForCorrection(err)
					return
				}
				a.console.say("%v", err)
				sleep(ctx, 5*time.Second)
			}
		})
	}
	select {
	case <-ctx.Done():
		return text, known
	case text := <-a.texts:
		a.console.say("new configuration")
		return text, true
	}
}

func (a *appliance) waitForCorrection(err error) {
	if err == nil {
		return
	}
	a.shown.set(func(s *status) {
		s.State, s.Problem, s.Ready = "waiting for a corrected configuration", err.Error(), ""
	})
	a.console.say("%v", err)
	a.settle()
}

// settle marks the file that booted as good: this system works so far that it can be given another file.
func (a *appliance) settle() {
	a.settled.Do(func() {
		name, err := a.stick.confirmBoot()
		switch {
		case err != nil:
			a.shown.set(func(s *status) {
				s.Boot = fmt.Sprintf("%s: not marked as good: %v", efiVariable("LoaderEntrySelected"), err)
			})
			a.console.say("boot: not marked as good: %v", err)
		case name != "":
			a.shown.set(func(s *status) { s.Boot = name + ", now marked as good" })
			a.console.say("boot: %s marked as good", name)
		default:
			a.shown.set(func(s *status) { s.Boot = efiVariable("LoaderEntrySelected") })
		}
	})
}

// findStick looks for the stick each second, and passes on its configuration when it appears.
func (a *appliance) findStick(ctx context.Context) {
	for {
		if a.stick.find() {
			a.stick.mu.Lock()
			device := a.stick.device
			a.stick.mu.Unlock()
			if device == "" {
				a.shown.set(func(s *status) { s.Stick = "not there" })
				a.console.say("stick: not there any more")
			} else {
				text, err := a.stick.read(fileName)
				a.shown.set(func(s *status) {
					s.Stick = device
					if a.url == "" {
						s.Configuration = fileName + " on " + device
					}
				})
				a.console.say("stick: %s", device)
				if err != nil {
					a.console.say("stick: %s: %v", fileName, err)
				} else if a.url == "" {
					a.put(text)
				}
			}
		}
		if !sleep(ctx, time.Second) {
			return
		}
	}
}

func (a *appliance) put(text string) {
	select {
	case <-a.texts: // an older one that has not been read yet
	default:
	}
	a.texts <- text
}

// fetch gets the configuration from the URL, and again every few seconds while it is missing or wrong, otherwise every
// minute.
func (a *appliance) fetch(ctx context.Context, text string, known bool) {
	for {
		got, err := download(ctx, a.url)
		wait := time.Minute
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !known:
			a.shown.set(func(s *status) { s.Problem = err.Error() })
			wait = time.Second
		case err == nil && (got != text || !known):
			a.put(got)
			return
		case a.shown.get().Problem != "":
			wait = 5 * time.Second
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

// questions asks on the console for a card and an address, and returns a configuration.
func (a *appliance) questions(ctx context.Context, before string, answers chan<- string) {
	all, err := supported()
	a.complain(err)
	a.shown.set(func(s *status) {
		s.State, s.Cards = "nothing to answer for: asking on the console", nil
		for _, f := range all {
			s.Cards = append(s.Cards, describe(f))
		}
	})
	a.settle()
	defer a.shown.set(func(s *status) { s.Cards = nil })
	defer a.console.answered()
	for ctx.Err() == nil {
		var list strings.Builder
		for i, f := range all {
			fmt.Fprintf(&list, "  %d  %s\n", i+1, describe(f))
		}
		a.console.ask(fmt.Sprintf(
			"\nNo address to answer for is configured. Nothing is answered. Supported cards:\n%s\nNumber of the card, or name of an interface: ", list.String()))
		device := a.answer(ctx)
		if n, err := strconv.Atoi(device); err == nil && n >= 1 && n <= len(all) {
			device = all[n-1].Address
		} else if _, err := pci.ParseAddress(device); err != nil {
			if _, err := netlink.LinkByName(device); err != nil {
				continue
			}
		}
		a.console.ask("Address to answer for, with the length of its subnet (10.0.0.2/24): ")
		address := a.answer(ctx)
		text := fill(before, device, address)
		a.console.ask(fmt.Sprintf("Answer for %s on %s. Write this to %s on the stick? (yes, no, or cancel): ", address,
			device, fileName))
		switch a.answer(ctx) {
		case "yes", "y":
			if err := a.stick.write(fileName, []byte(text)); err != nil {
				a.console.say("stick: %v", err)
			}
		case "no", "n":
		default:
			continue
		}
		if ctx.Err() == nil {
			answers <- text
		}
		return
	}
}

func (a *appliance) answer(ctx context.Context) string {
	select {
	case line := <-a.console.Lines:
		return line
	case <-ctx.Done():
		return ""
	}
}

// bringUp brings an interface up.
func bringUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("nic.device: interface %s: %w", name, err)
	}
	return netlink.LinkSetUp(l)
}
