package main

func demoCommand(e *env, args []string) error { return nil }
