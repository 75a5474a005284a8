"""The pack `ide`: chats, runs and their state, of this machine or of a bridge."""
