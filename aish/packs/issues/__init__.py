"""The pack `issues`."""
