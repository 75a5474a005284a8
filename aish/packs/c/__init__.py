"""The pack `c`: reads and changes C and C++ by symbol."""
